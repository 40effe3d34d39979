"""Ten updates of `finetune_detection` beside a training loop of plain PyTorch, written from Scenic's description alone.

The loop has its own forward pass, assignment, losses, clipping and Adam: of the package it gets the weights to begin
with, and nothing else. Its gradients are PyTorch's, those of the model the backend's.
"""

import math

import numpy as np
import pytest

from keras_vit import data, training
from tests.small_models import values_of
from tests.training.test_detection import NAMES, SIZE, detector, scenes

STEPS, WARMUP, RATE = 10, 2, 3e-3
HEADS, PATCH, GRID = 2, 4, SIZE // 4
# Ten updates of float32, sums in another order: 1.2e-7 was found on torch, 4.8e-7 on JAX and TensorFlow, where weights
# move by 0.015.
CLOSE = 2e-6


def forward(torch, w, images):
    """Logits `(N, P, C)` and boxes `(N, P, 4)`, centre and size, of normalised pictures `(N, height, width, 3)`."""
    F = torch.nn.functional

    def linear(x, name):
        return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0)

    def norm(x, name, epsilon):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}/gamma"], w[f"{name}/beta"], epsilon)

    count, width = len(images), w["embedding/bias"].shape[0]
    patches = images.reshape(count, GRID, PATCH, GRID, PATCH, 3).permute(0, 1, 3, 2, 4, 5).reshape(count, GRID**2, -1)
    x = patches @ w["embedding/kernel"].reshape(-1, width) + w["embedding/bias"]
    x = torch.cat([w["class_token/token"].expand(count, -1, -1), x], 1) + w["position_embedding/table"]
    for block in ("block_0", "block_1"):
        y = norm(x, f"{block}/norm1", 1e-6)
        parts = (linear(y, f"{block}/attention/{part}") for part in ("query", "key", "value"))
        q, k, v = (part.reshape(count, -1, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        y = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(width // HEADS), -1) @ v
        x = x + linear(y.transpose(1, 2).reshape(count, -1, width), f"{block}/attention/out")
        y = F.gelu(linear(norm(x, f"{block}/norm2", 1e-6), f"{block}/mlp/fc1"), approximate="tanh")
        x = x + linear(y, f"{block}/mlp/fc2")
    x = norm(x, "encoder_norm", 1e-6)
    x = norm(x[:, 1:] * x[:, :1], "head/norm", 1e-5)
    vectors = linear(x, "head/embed")
    vectors = vectors / (vectors.norm(dim=-1, keepdim=True) + 1e-6)
    shift, scale = linear(x, "head/logit_shift"), F.elu(linear(x, "head/logit_scale")) + 1
    logits = (vectors @ w["head/queries/kernel"] + shift) * scale
    y = F.gelu(linear(F.gelu(linear(x, "head/box_fc1")), "head/box_fc2"))
    column, row = torch.meshgrid(torch.arange(1, GRID + 1) / GRID, torch.arange(1, GRID + 1) / GRID, indexing="xy")
    place = torch.stack([column, row, *[torch.full_like(row, 1 / GRID)] * 2], -1).reshape(-1, 4)
    bias = torch.log(place + 1e-4) - torch.log1p(1e-4 - place)
    return logits, torch.sigmoid(linear(y, "head/box_fc3") + bias)


def overlap(torch, one, other):
    """The generalized intersection over union of pairs of boxes `(..., 4)`, left, top, right and bottom."""
    area = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (one, other)]
    inner = (torch.minimum(one, other)[..., 2:] - torch.maximum(one, other)[..., :2]).clamp(min=0).prod(-1)
    hull = (torch.maximum(one, other)[..., 2:] - torch.minimum(one, other)[..., :2]).prod(-1)
    union = area[0] + area[1] - inner
    return inner / (union + 1e-6) - (hull - union) / (hull + 1e-6)


def loss_of(torch, logits, boxes, target):
    """Scenic's loss of one picture, `target` with boxes as shares of it and the number of the class of each."""
    from scipy.optimize import linear_sum_assignment

    log = torch.nn.functional.logsigmoid

    def corners(box):
        return torch.cat([box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2], -1)

    true, labels = torch.tensor(target["boxes"], dtype=torch.float32), torch.tensor(target["labels"])
    share = torch.sigmoid(logits)
    positive = 0.3 * (1 - share) ** 2 * -log(logits)
    negative = 0.7 * share**2 * -log(-logits)
    cost = (positive - negative)[:, labels] + (boxes[:, None] - true).abs().sum(-1)
    cost = cost - overlap(torch, corners(boxes)[:, None], corners(true)[None])
    patches, places = map(torch.from_numpy, linear_sum_assignment(cost.detach().numpy()))
    wanted = torch.zeros_like(logits)
    wanted[patches, labels[places]] = 1
    classes = (wanted * positive + (1 - wanted) * negative).sum() / len(labels)
    found, true = corners(boxes[patches]), corners(true[places])
    return classes + ((found - true).abs().sum() + (1 - overlap(torch, found, true)).sum()) / len(labels)


@pytest.mark.nightly_elsewhere
def test_ten_updates_are_those_of_an_own_loop():
    torch = pytest.importorskip("torch")
    model, boxes = detector(class_names=NAMES), scenes(6)
    recipe = training.recipe("detection/owl_finetune").replace(
        steps=STEPS,
        batch_size=6,  # all pictures: the order in which they come changes nothing
        image_size=SIZE,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        drop_path=0.0,
        augmentation=data.BoxAugmentation(min_area=1.0, flip=False),
    )
    done = training.finetune_detection(model, boxes, recipe, verbose=False)

    pictures, targets = zip(*(boxes.read(i) for i in range(6)), strict=True)
    images = torch.from_numpy(np.stack(pictures).astype("float32")) / 127.5 - 1
    for target in targets:
        found = np.asarray(target["boxes"]) / SIZE
        target["boxes"] = np.concatenate([(found[:, :2] + found[:, 2:]) / 2, found[:, 2:] - found[:, :2]], 1)
    weights = {path: torch.from_numpy(np.array(value)).requires_grad_() for path, value in values_of(model).items()}
    optimizer = torch.optim.Adam(weights.values(), eps=1e-8)
    for step in range(STEPS):
        progress = max(step - WARMUP, 0) / (STEPS - WARMUP)
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / WARMUP) * (1 + math.cos(math.pi * progress)) / 2
        outputs = zip(*forward(torch, weights, images), targets, strict=True)
        optimizer.zero_grad()
        sum(loss_of(torch, *one) for one in outputs).div(len(images)).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0, error_if_nonfinite=True)
        optimizer.step()
    ours, before = values_of(done.model), values_of(model)
    assert ours.keys() == weights.keys() and len(ours) == 53
    for path, value in ours.items():
        if path.endswith("key/bias"):  # two: no softmax sees them, and Adam makes rounding large
            continue
        np.testing.assert_allclose(value, weights[path].detach().numpy(), atol=CLOSE, rtol=0, err_msg=path)
        assert np.abs(value - before[path]).max() > 1000 * CLOSE, path
