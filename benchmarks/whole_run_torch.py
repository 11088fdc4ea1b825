"""The prototype's half of `benchmarks.whole_run`: one phase in PyTorch, an epoch for each line of
standard input. It needs PyTorch and NumPy, and nothing of btcp_tf."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

BINS = 10
"""Of the histogram of a batch's targets."""


class Encoder(nn.Module):
    """The paper's small network, without its last layer; uint8 images `[n, h, w, 1]`."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.features = nn.Linear(14 * 14 * 64, feature_dim)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        n, height, width, channels = images.shape
        # With one channel both layouts fit the same strides: this says which is meant.
        x = torch.empty((n, channels, height, width), memory_format=torch.channels_last)
        x.copy_(images.permute(0, 3, 1, 2)).div_(255)
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.dropout(x, 0.25, self.training)
        x = functional.relu(self.features(x.permute(0, 2, 3, 1).flatten(1)))
        return functional.dropout(x, 0.5, self.training)


def estimator(feature_dim: int) -> nn.Module:
    """Four hidden layers of 400, and a sigmoid."""
    layers: list[nn.Module] = []
    for width in (feature_dim, 400, 400, 400):
        layers += [nn.Linear(width, 400), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(400, 1), nn.Sigmoid())


def focal_loss(u_true: torch.Tensor, u_pred: torch.Tensor) -> torch.Tensor:
    """The DFL with gamma 1 and the density of the target's bin in the batch."""
    bins = (u_true * BINS).long().clamp(max=BINS - 1)
    density = torch.histc(u_true, BINS, 0, 1)[bins] / len(u_true)
    return ((1 - density) * (u_pred - u_true) ** 2).mean()


def main() -> None:
    number = int(sys.argv[1])
    folder, epochs, threads, batch_size, feature_dim, rates, momentum, decay = json.loads(
        sys.argv[2]
    )
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with np.load(Path(folder) / "images.npz") as saved:
        images, labels = torch.from_numpy(saved["images"]), torch.from_numpy(saved["labels"])
    encoder = Encoder(feature_dim).to(memory_format=torch.channels_last)
    classifier, head = nn.Linear(feature_dim, 10), estimator(feature_dim)
    parts = ([encoder, classifier], [head], [encoder, classifier, head])[number]
    parameters = [parameter for part in parts for parameter in part.parameters()]
    optimizer = torch.optim.SGD(parameters, rates[number], momentum=momentum, weight_decay=decay)
    frozen = number == 1
    encoder.train(not frozen)

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not frozen):
            features = encoder(images)
            logits = classifier(features)
            cross_entropy = functional.cross_entropy(logits, labels)
        if number == 0:
            return cross_entropy
        probs = logits.detach().softmax(1)
        u_true = 1 - probs.gather(1, labels[:, None])[:, 0]
        dfl = focal_loss(u_true, head(features)[:, 0])
        return dfl if frozen else cross_entropy + dfl

    for _ in range(epochs):
        sys.stdin.readline()
        started, total = time.perf_counter(), torch.zeros(())
        for rows in torch.randperm(len(images)).split(batch_size):
            loss = loss_of(images[rows], labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        loss = total.item() / len(images)
        epoch = time.perf_counter() - started
        print(json.dumps({"epoch": epoch, "beside": 0.0, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
