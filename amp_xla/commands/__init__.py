"""What a user types: ``amp-xla <command>``."""
