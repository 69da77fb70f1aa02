"""The parts that all recipes share: precision, seed, ranks, a resumed run's checkpoint, the job.

A recipe's ``build(config, context)`` decides about texts, model, loss and evaluation. The context
builds optimizer, step and job. ``inspect``, ``rehearse`` and ``plan`` call the same ``build``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping, Optional

from amp_xla.config import flat
from amp_xla.data.labelled import Labelled, Preparation
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.models import fine_tuning
from amp_xla.models.options import SIZES
from amp_xla.models.weights import pretrained
from amp_xla.process.progress import note
from amp_xla.settings import AUTO, auto
from amp_xla.training import distributed
from amp_xla.training.checkpoint import ARCHITECTURE, Checkpoint
from amp_xla.training.state import WINDOW_ROWS, XLA_LENGTHS, LoopState


class RunContext:
    """Settings and building blocks of one training job.

    Sets precision, seeds and dropout masks if the configuration has ``PrecisionOptions``. Without
    these, as in JAX recipes, the attributes ``precision`` and ``step_input`` are missing.

    Args:
      config: the recipe's configuration.
      resume_from: checkpoint that a resumed run continues from.

    Attributes:
      config: the configuration; in a resumed run, ``bert``, if set, is the checkpoint's folder.
      micro_batches: number of micro-batches per update and rank.
      precision: precision, XLA mode and loss scale. The XLA mode ``auto`` becomes ``on`` or ``off``
        at construction if the run is resumed or has no GPU, else later, at the latest in ``job``.
      step_input: placeholder of the micro-batch's number, which decides the dropout masks.
    """

    def __init__(self, config: Any, resume_from: Optional[Checkpoint] = None) -> None:
        self._resume_from = resume_from
        self.config = config if resume_from is None else resume_from.pinned(config)
        self.ranks = distributed.current()
        self.micro_batches = self.ranks.micro_batches(getattr(config, "accumulate", 1))
        self._fused = getattr(config, "attention", "plain") == "fused"
        if self._fused and config.encoder.attention_dropout:
            raise SettingsError("--attention fused excludes --attention-dropout above 0")
        options = getattr(config, "precision_options", None)
        if options is None:
            return
        self.precision = options.resolve()
        # TensorFlow reads the precision at its import, so the imports follow here.
        from amp_xla import backend
        from amp_xla.backend import configuring
        from amp_xla.models import dropout
        from amp_xla.training import job

        job.seed_everything(config.seed)
        hashed: Optional[bool] = None
        if resume_from is not None:  # its masks, whether XLA is on now or not
            hashed = resume_from.identity["settings"].get(dropout.MASKS) == dropout.HASH
        self.step_input = dropout.install(config.seed, hashed)
        if self.precision.settings.xla == AUTO and resume_from is not None:
            lengths = resume_from.identity["settings"].get(XLA_LENGTHS)
            choice = auto.Choice(lengths is not None, "as when the run began", lengths)
            self.precision = configuring.choose_xla(choice)
        elif not backend.gpus():  # a recipe may build its model before it shares batches
            self._choose_xla(None)

    @property
    def reads_weights(self) -> bool:
        """True if weights are read from ``--bert``; False if they come from a checkpoint."""
        return self._resume_from is None

    # -- texts --------------------------------------------------------------------------------

    def preparation(self, packed: bool = False) -> Preparation:
        """Return the settings that turn texts into batches, one batch per update.

        ``packed``: whether a row has several texts.
        """
        config = self.config
        if self._resume_from is None:
            self._defaults = config.defaults()  # counts the texts, which are read next
        size = config.batches.batch_size * getattr(config, "accumulate", 1)
        here = hasattr(self, "precision")
        # cuDNN's attention has one shape, so all rows have the maximum length.
        shapes = 0 if here and self._fused else config.batches.shapes
        begun = {} if self._resume_from is None else self._resume_from.identity["settings"]
        return Preparation(
            config.vocabulary, dataclasses.replace(config.batches, batch_size=size, shapes=shapes),
            config.encoder.bert, config.training.token_dropout, config.seed, packed,
            config.batches.batch_size, begun.get(WINDOW_ROWS),
            self._choose_xla if here else None,
        )  # fmt: skip

    def shared(self, data: Labelled) -> Labelled:
        """Print ``data.description``; return ``data`` with only this rank's rows in each batch."""
        note(data.description)
        batches, dev_batches = map(self.share, (data.batches, data.dev_batches))
        return data._replace(batches=batches, dev_batches=dev_batches)

    def share(self, batches: Any) -> Any:
        """Return a ``BatchSource`` of this rank's rows, each batch cut into micro-batches."""
        shared = self.ranks.share(batches, self.micro_batches)
        if hasattr(self, "precision"):
            self._choose_xla(batches)
            if self._fused:
                from amp_xla.models import fused

                self._fused = False  # the next batches are those of evaluation
                fused.install(shared.shapes)
        return shared

    def _choose_xla(self, batches: Optional[Any]) -> bool:
        """Choose the XLA mode if it is ``auto``; return whether batches must have few lengths.

        ``batches`` are the training batches; None = unknown.
        """
        if self.precision.settings.xla == AUTO:
            from amp_xla import backend
            from amp_xla.backend import configuring

            work = None if batches is None else work_of(self.config, batches, self.ranks.world.size)
            capability = (backend.compute_capability() or (7, 0)) if backend.gpus() else None
            self.precision = configuring.choose_xla(auto.choose(work, capability, backend.kind()))
        return self.precision.choice is not None and self.precision.choice.lengths is not None

    def steps(self, batches: Any) -> int:
        """Return the number of steps of the whole run; print a new run's learning rate etc."""
        config = self.config
        state = LoopState() if self._resume_from is None else self._resume_from.loop
        steps = state.total(config.training.epochs, int(batches.steps_per_epoch()))
        if self._resume_from is None:
            defaults = vars(self).get("_defaults") or getattr(config, "defaults", dict)()
            note(fine_tuning.describe(flat(config), defaults, steps))
        return steps

    # -- update -------------------------------------------------------------------------------

    def optimizer(
        self, steps: int, rule: Any = None, decay: str = "linear", sharded: Any = None
    ) -> Any:
        """Return the ``LossScaleOptimizer``.

        Args:
          steps: updates of the whole run.
          rule: function (learning rate, ``weight_decay``) -> optimizer; None = ``AdamW``.
          sharded: ``TableShards`` with this rank's rows of tables; they get the same learning rate.
        """
        from amp_xla.backend import tf
        from amp_xla.precision.agreement import Reduction
        from amp_xla.precision.optimizer import LossScaleOptimizer
        from amp_xla.training.optimizers.adamw import AdamW
        from amp_xla.training.optimizers.schedule import warmup_decay

        config, ranks, update, steps = self.config, self.ranks, self.config.update, max(1, steps)
        applied = tf.get_variable(
            "applied_steps", (), tf.int64, trainable=False, initializer=tf.zeros_initializer()
        )
        warmup = int(update.warmup * steps)
        self._rate = warmup_decay(applied, update.learning_rate, warmup, steps, decay)
        how: Dict[str, Any] = {}
        if sharded is not None:
            sharded.optimizer.learning_rate = self._rate
            # Gradients of shards differ between ranks, but all ranks must skip the same steps.
            how.update(groups=[(sharded.holds, sharded.optimizer)], model_parallel=sharded.holds)
        reduce = Reduction(ranks.hvd, config.precision_options.reduce) if ranks.several else None
        return LossScaleOptimizer(
            (rule or AdamW)(self._rate, weight_decay=update.weight_decay),
            self.precision.loss_scale, global_clipnorm=update.clip_norm or None,
            agreement="auto" if sharded else None, reduce=reduce, applied_steps=applied,
            accumulate=self.micro_batches,
            recompute="memory" in vars(config) and config.memory.recompute, **how,
        )  # fmt: skip

    def step(self, *parts: Any, **named: Any) -> Any:
        """Build a ``TrainStep``; its ``learning_rate`` is by default the optimizer's."""
        from amp_xla.training.step import TrainStep

        rate = named.pop("learning_rate", vars(self).get("_rate"))
        if rate is None:
            raise AmpXlaError("build must call context.optimizer before context.step")
        return TrainStep(*parts, **{"learning_rate": rate, **named})

    def text_step(
        self, model: Any, inputs: Mapping[str, Any], objective: Any, batches: Any, **how: Any
    ) -> Any:
        """Build the ``TrainStep`` of a model of texts, with the tricks in the configuration.

        ``objective`` and ``how`` are arguments of ``Tricks.loss``.
        """
        from amp_xla.training.tricks import Tricks

        config = self.config
        pretrained = bool(config.encoder.bert or config.run.warm_start or self._resume_from)
        tricks = Tricks(config.tricks, model, pretrained, config.memory.recompute)
        optimizer = self.optimizer(self.steps(batches), tricks.rule)
        loss, metrics = tricks.loss(objective, inputs["weights"], optimizer.loss_scale, **how)
        loss += sum(model.losses)
        return self.step(inputs, loss, optimizer, tricks.variables, metrics)

    # -- job ----------------------------------------------------------------------------------

    def job(self, *parts: Any, **others: Any) -> Any:
        """Build a ``Job`` with these arguments; ``resolved`` is set to the context's precision."""
        from amp_xla.training.job import Job

        self._choose_xla(None)  # in a recipe that shares no batches
        others["resolved"] = self.precision
        return Job(*parts, **others)

    def text_job(
        self, model: Any, step: Any, data: Labelled, evaluate: Callable[[], Mapping[str, float]],
        architecture: Optional[bytes] = None, **others: Any,
    ) -> Any:  # fmt: skip
        """Return the ``Job`` of a model of texts; with ``--ema``, averaged weights are evaluated.

        ``architecture`` is the content of ``bert_config.json``; None = that of the encoder.
        ``others`` are attributes of ``Job``, such as ``rates``.
        """
        from amp_xla.training.optimizers.average import in_place

        evaluate = in_place(step.optimizer, step.variables)(evaluate)
        vocabulary, length = data.tokenizer.vocab_size, self.config.batches.max_length
        architecture = architecture or self.config.encoder.architecture(vocabulary, length)
        assets = {**data.assets, ARCHITECTURE: architecture}
        return self.job(model, step, data.batches, evaluate, assets, data.fingerprints, **others)


def work_of(config: Any, batches: Any, ranks: int = 1) -> Optional[auto.Work]:
    """Return the numbers by which ``--xla auto`` decides; None if the encoder's size is unknown.

    ``batches`` have the rows of all ranks. The tokens in the result are those of one GPU.
    """
    encoder: Any = getattr(config, "encoder", None)
    if not dataclasses.is_dataclass(encoder):
        return None
    options = vars(encoder)
    layers, hidden = options.get("layers"), options.get("hidden")
    if options.get("model") in SIZES:
        layers, hidden, _ = SIZES[options["model"]]
    if options.get("bert") is not None:
        bert = fine_tuning.configuration(options["bert"])
        layers, hidden = bert.get("num_hidden_layers"), bert.get("hidden_size")
    if not (isinstance(layers, int) and isinstance(hidden, int)):
        return None
    steps = flat(config).get("epochs", 1) * batches.steps_per_epoch()
    tokens = [rows * length / ranks for rows, length in batches.shapes]
    shapes = min(len(tokens), auto.LENGTHS)
    return auto.Work(steps, sum(tokens) / len(tokens), layers, hidden, shapes)


def build_job(
    build: Callable[..., Any], config: Any, resume_from: Optional[Checkpoint] = None
) -> Any:
    """Return the job that a recipe's ``build`` returns for a configuration.

    Raises:
      AmpXlaError: ``build`` returns something else.
    """
    context = RunContext(config, resume_from)
    job = build(context.config, context)
    if not hasattr(job, "batches"):
        raise AmpXlaError(
            f"build must return a job, made by context.job or context.text_job; found: {job!r}"
        )
    return job


def text_defaults(config: Any, **training: Any) -> Dict[str, Any]:
    """Return the settings' defaults that depend on ``--bert``, by name.

    ``training`` are arguments of ``config.files.count``, which counts the texts.
    """
    bert = config.encoder.bert
    pretrained.check(bert)  # first, because texts may take minutes
    vocabulary = config.vocabulary.defaults(bert)
    texts = config.files.count(**training) if bert else 0
    return {**fine_tuning.defaults(bert, texts), **vocabulary}
