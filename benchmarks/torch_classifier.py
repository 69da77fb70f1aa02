"""Contestant: Hugging Face transformers on PyTorch, trained as by its Trainer.

AdamW, linear schedule, gradients clipped at norm 1; float32 or bfloat16 autocast. Batches are
padded to their longest text; ``group`` groups texts of similar length, by the Trainer's sampler.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Iterator

from benchmarks import corpus, serve
from benchmarks.torch_bert import autocast, bert_config, peak


def main() -> int:
    """Build the model and answer commands."""
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
    samples, size = train.samples(), shape["batch_size"]

    def epoch(number: int) -> Iterator[serve.Batch]:
        generator = torch.Generator().manual_seed(shape["seed"] + number)
        if shape["group"]:
            lengths = [len(sample) for sample in samples]
            order = list(LengthGroupedSampler(size, lengths=lengths, generator=generator))
        else:
            order = torch.randperm(len(samples), generator=generator).tolist()
        for i in range(0, len(order), size):
            chosen = order[i : i + size]
            yield corpus.pad([samples[j] for j in chosen]), train.labels[chosen]

    def step(batch: serve.Batch) -> float:
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
        return float(loss)

    def accuracy() -> float:
        model.eval()
        held, right = dev.samples(), 0
        with torch.no_grad(), autocast(shape["precision"], device):
            for i in range(0, len(held), 64):
                ids = torch.from_numpy(corpus.pad(held[i : i + 64])).to(device)
                classes = model(ids).argmax(-1).cpu().numpy()
                right += int((classes == dev.labels[i : i + 64]).sum())
        return right / len(held)

    serve.serve(epoch, serve.Contestant(step, peak=peak), accuracy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
