"""What pyproject.toml can't say: the recipes are installed inside the package.

In a checkout a recipe is `recipes.classification`, installed it is
`amp_xla.recipes.classification`: a top-level package named `recipes` has no business in
site-packages.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["amp_xla", "amp_xla.*"]), "amp_xla.recipes"],
    package_data={
        "amp_xla.commands": ["*.txt"],
        "amp_xla.export": ["*.txt"],
        "amp_xla.models": ["*.json"],
        "amp_xla.graph.compiler": ["*.cc", "*.sh", "*.txtpb", "re2/*"],
        "amp_xla.report": ["templates/*"],
        "amp_xla.speed.plan": ["*.json"],
    },
    package_dir={"amp_xla.recipes": "recipes"},
)
