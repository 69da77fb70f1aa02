"""A contestant of the benchmarks: Hugging Face transformers on PyTorch, as its Trainer trains.

AdamW, linear schedule, gradients clipped at norm 1; float32 or bfloat16 autocast. Batches are
padded to their longest text; ``group`` groups texts of similar length, by the Trainer's sampler.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any, Iterator, Mapping

from benchmarks import corpus, timing
from benchmarks.child import peak_resident


def main() -> int:
    """Build the model; do the task."""
    import torch
    from transformers import BertModel, get_linear_schedule_with_warmup
    from transformers.trainer_pt_utils import LengthGroupedSampler

    train, dev, vocab_size = corpus.load(sys.argv[1])
    shape = json.loads(sys.argv[2])
    torch.manual_seed(shape["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = bert_config(shape, vocab_size)

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(config, add_pooling_layer=False)
            self.dropout = torch.nn.Dropout(shape["dropout"])
            self.logits = torch.nn.Linear(shape["hidden"], shape["classes"])

        def forward(self, ids: Any) -> Any:
            mask = ids != 0
            vectors = self.bert(ids, attention_mask=mask).last_hidden_state
            weights = mask[:, :, None].to(vectors.dtype)
            pooled = (vectors * weights).sum(1) / weights.sum(1)
            return self.logits(self.dropout(pooled))

    model = Classifier().to(device)
    named = list(model.named_parameters())
    plain = [p for n, p in named if "bias" in n or "LayerNorm" in n]
    decayed = [p for n, p in named if not ("bias" in n or "LayerNorm" in n)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=shape["learning_rate"],
        eps=1e-6,
        fused=True,
    )
    total = shape["schedule_steps"]
    schedule = get_linear_schedule_with_warmup(optimizer, max(1, total // 10), total)
    samples, size = train.samples, shape["batch_size"]

    def epoch(number: int) -> Iterator[timing.Batch]:
        generator = torch.Generator().manual_seed(shape["seed"] + number)
        if shape["group"]:
            lengths = [len(sample) for sample in samples]
            order = list(LengthGroupedSampler(size, lengths=lengths, generator=generator))
        else:
            order = torch.randperm(len(samples), generator=generator).tolist()
        for i in range(0, len(order), size):
            chosen = order[i : i + size]
            yield corpus.pad([samples[j] for j in chosen]), train.labels[chosen]

    def step(batch: timing.Batch) -> float:
        model.train()
        ids = torch.from_numpy(batch[0]).to(device)
        labels = torch.from_numpy(batch[1]).long().to(device)
        with autocast(shape["precision"], device):
            loss = torch.nn.functional.cross_entropy(model(ids).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return float(loss.detach())

    def classes(ids: Any) -> Any:
        model.eval()
        with torch.no_grad(), autocast(shape["precision"], device):
            return model(torch.from_numpy(ids).to(device)).argmax(-1).cpu().numpy()

    timing.run(epoch, timing.Contestant(step, peak=peak), lambda: dev.accuracy(classes))
    return 0


def bert_config(shape: Mapping[str, Any], vocab_size: int) -> Any:
    """Return the BERT configuration: heads of size 64, exact GELU."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["hidden"] // 64,
        intermediate_size=4 * shape["hidden"],
        hidden_dropout_prob=shape["dropout"],
        attention_probs_dropout_prob=shape.get("attention_dropout", shape["dropout"]),
    )


def autocast(precision: str, device: str) -> Any:
    """Return bfloat16 autocast, or a context that does nothing for ``fp32``."""
    import torch

    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def peak() -> int:
    """Return the peak memory in bytes: of the GPU if there is one, else of the process."""
    import torch

    gpu = torch.cuda.is_available()
    return int(torch.cuda.max_memory_allocated()) if gpu else peak_resident()


if __name__ == "__main__":
    sys.exit(main())
