# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A small Vision Transformer on CIFAR-10 that watches its test set, corrected and measured
#
# A teaching notebook cuts images of 32 x 32 into 64 patches and reads them with four blocks of width 48 with four
# heads. Its text says 75.5 % on CIFAR-10. It has five faults:
#
# 1. As printed it cannot be built, because it calls a function that it never defines.
# 2. There is no LayerNorm after the last block.
# 3. Positions and class token start at a standard deviation of 1, fifty times as large as is usual.
# 4. The learning rate never falls.
# 5. The test set is evaluated after every epoch, so the best point of the curve is chosen on the test set.
#
# Here each is shown in a few lines of code that were written for this page, with **what it costs**: networks that
# differ in this one thing are trained with the same seeds, the same batches in the same order and as many steps. For
# this, patches have 8 x 8 pixels, so there are 16 of them instead of 64. Then the corrected network is trained by
# `vit_jax`, with all 64 patches, and we look at what it has learned.
#
# {about}
#
# The variants of the first table take {minutes} minutes of one core, and those of the second table {minutes
# cifar10_vit_48_watched} minutes. To train the corrected network for its 100 epochs instead of one (this needs a GPU),
# write `FULL = True` in the next cell, or start Jupyter by `FULL=1 jupyter lab`.

# %%
import os
import subprocess
import sys
import tempfile
from dataclasses import replace

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from exercises import check_answers
from flax import nnx
from IPython.display import Markdown
from prices import price
from race import Budget, Variant, race, train_and_test
from safetensors.numpy import save_file

import vit_jax

FULL = os.environ.get("FULL", "") == "1"
os.chdir(tempfile.mkdtemp())  # for the run that is trained below

# %% [markdown]
# ## The corrected network
#
# {preset} Here it has all its 64 patches and is trained for one epoch. Its help lists what was corrected; in a
# terminal: `python -m vit_jax.train cifar10-48x4 --help`.
#
# {run}

# %%
short = {"epochs": 1, "batch": 64, "optim.lr": 3e-3, "optim.warmup": 0.1}
preset = vit_jax.preset("cifar10-48x4", fields={} if FULL else short)
summary = vit_jax.train(preset.run, preset="cifar10-48x4")

# %% [markdown]
# ## The data, and what all variants have in common
#
# The variants are trained by a short loop, which is in `race.py`. A `Variant` says how a network is built, how it sees
# a batch, what its loss is, and its optimizer; `replace(right, ...)` is the right variant with one thing changed.


# %%
train, test = train_and_test("cifar10")


def network(seed, **fields):
    config = vit_jax.preset("cifar10-48x4", fields={"patch": 8, **fields}).run.model
    return vit_jax.ViT(config, rngs=nnx.Rngs(seed))


def see(net, batch):
    return net(batch["image"].astype(jnp.float32) / 127.5 - 1)


def cross_entropy(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def accuracy(predict, test):
    return {"accuracy": (predict(test).argmax(-1) == test["label"]).mean()}


def with_fields(**fields):
    return replace(right, network=lambda seed: network(seed, **fields))


right = Variant(network, see, cross_entropy)

# %% [markdown]
# ## Fault 1: a function that is not there
#
# The constructor ends by calling a method of the class that gives all weights their initial values, but the class has
# no such method. So nobody ever ran the network as it is printed (this cell needs PyTorch, and says so where there is
# none; a *kernel* is the weight matrix of a linear layer):

# %%
try:
    from torch import nn
except ImportError:
    print("PyTorch is not installed here")
else:

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(48, 48)
            self.apply(self.first_values)

    try:
        Classifier()
    except AttributeError as error:
        print(error)
    print(f"without that line, kernels start with a standard deviation of {nn.Linear(48, 48).weight.std():.2f}")

# %% [markdown]
# If the call is deleted, PyTorch's own initial weights remain. For 48 inputs they are four times as large as the 0.02
# that the preset has. That value is usual for Vision Transformers, most of which are ten times as wide.

# %%
deleted = with_fields(**{"model.init": "torch"})

# %% [markdown]
# ## Fault 2: no LayerNorm after the last block
#
# In a pre-norm network each block adds to what it was given, and only what a block *reads* is normalised. What leaves
# the last block is a sum of everything that was ever added, and its size is whatever this sum has. Published pre-norm
# Vision Transformers normalise it once more, after the last block or just before the head. Here is the size of what the
# head is given, for networks before training:

# %%
no_norm = with_fields(final_norm=False)
images = test["image"][:64].astype(np.float32) / 127.5 - 1
for name, net in (("a final LayerNorm", network(0)), ("none", network(0, final_norm=False))):
    sizes = np.asarray(net.capture(images, ["pooled"])["pooled"]).std(1)
    print(f"with {name}: what the head is given has standard deviations of {sizes.min():.3f} to {sizes.max():.3f}")

# %% [markdown]
# ## Fault 3: positions and a class token that start at standard deviation 1
#
# They are drawn by `randn`. At the start a projected patch is much smaller than that, so a token says where it is, and
# hardly anything about what it shows. Here is how similar the tokens of one place are in 64 images, as the mean cosine
# over all pairs of images (each image also with itself, so that 0.016 is the least):

# %%
large = with_fields(position_std=1.0, token_std=1.0)
for name, fields in (("0.02", {}), ("1", {"position_std": 1.0, "token_std": 1.0})):
    tokens = np.array(network(0, **fields).capture(images, ["tokens"])["tokens"])[:, 1:]  # without the class token
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    print(f"positions of {name}: {np.einsum('ind,jnd->nij', tokens, tokens).mean():.3f}")

# %% [markdown]
# ## Fault 4: a rate that never falls
#
# All variants here use Adam with a learning rate that rises to the same peak, 0.003, and falls to nothing. The variant
# *constant rate* keeps the peak from the first step to the last. A constant rate may have to be smaller than a peak, so
# it is also measured at a third of the peak. The notebook's own rate is 0.01, about three times the peak; that is
# measured, too.


# %%
def constant(steps, rate):
    return optax.adam(rate, b2=0.99)


constant_rate = replace(right, optimizer=constant)

# %% [markdown]
# ## What each costs
#
# {prices}
#
# Here the accuracy is on test, with three seeds. "All four" are faults 1 to 4 together, with the deleted call of fault
# 1 and the notebook's rate of 0.01.

# %%
all_fields = {"model.init": "torch", "final_norm": False, "position_std": 1.0, "token_std": 1.0}
together = replace(with_fields(**all_fields), optimizer=constant, rate=10 / 3)
variants = {
    "right": right,
    "PyTorch's own first weights": deleted,
    "no final LayerNorm": no_norm,
    "positions and class token of 1": large,
    "constant rate": constant_rate,
    "constant rate, a third": replace(constant_rate, rate=1 / 3),
    "constant rate, 0.01": replace(constant_rate, rate=10 / 3),
    "all four, 0.01": together,
}
found = race("cifar10_vit_48", variants, train, test, accuracy, Budget(steps=600, batch=64, rate=3e-3, seeds=3))
Markdown(found.markdown())

# %% [markdown]
# ## Fault 5: who watches the test set, chooses by it
#
# This is a fault of method. The notebook evaluates the test images after each epoch, and it has no other images to look
# at. So the epoch that is reported, the learning rate, and when to stop are all chosen by them. The best of many test
# accuracies is too good, because it was chosen for being good: a part of it is luck, which does not help on new images.
#
# To measure this luck one needs two sets of images that the network was not trained on. Here these are the two halves
# of the test set. The right network and the one with the constant rate learn from 4,000 images, each seen thirteen
# times, and are evaluated ten times during training (`looks=10`). Then the best of the ten evaluations is chosen by one
# half of the test set. Its accuracy is read on the **same** half, as someone does who reports the best point of a
# curve, or on the **other** half, which is honest. Each half is used both ways, with four seeds.
#
# (The table above compares variants on test, too. But there nothing is chosen: each variant is evaluated once, at its
# end, and all of them are reported.)

# %%
LOOKS = 10


def halves(predict, test):
    correct = predict(test).argmax(-1) == test["label"]
    return {"accuracy": correct.mean(), "first half": correct[:5000].mean()}


few = {name: x[:4000] for name, x in train.items()}
watched = {
    "right, watched": replace(right, looks=LOOKS),
    "constant rate, watched": replace(constant_rate, looks=LOOKS),
}
budget = Budget(steps=800, batch=64, rate=3e-3, seeds=4)
seen = race("cifar10_vit_48_watched", watched, few, test, halves, budget)
Markdown(seen.markdown())


# %%
def looks(scores, metric):  # [seeds, looks]
    names = [f"{metric} after {look} of {LOOKS}" for look in range(1, LOOKS)]
    return np.array([scores[name] for name in [*names, metric]]).T


def of_choice(whole, first):
    """The accuracy of each seed at the last look; at the best, read where it was chosen; and read on other images."""
    parts = np.stack([first, 2 * whole - first])  # [halves, seeds, looks]
    same = parts.max(-1)
    best = parts.argmax(-1)[..., None]
    other = np.take_along_axis(parts[::-1], best, -1)[..., 0]
    return whole[:, -1], same.mean(0), other.mean(0)


lines = ["| | last | best, same half | best, other half | its luck, points (95 %) |", "|---|---|---|---|---|"]
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
for ax, (title, scores) in zip(axes, seen.scores.items(), strict=True):
    whole, first = looks(scores, "accuracy"), looks(scores, "first half")
    last, same, other = of_choice(whole, first)
    p = price(list(same), list(other))
    means = " | ".join(f"{100 * x.mean():.2f}" for x in (last, same, other))
    lines.append(f"| {title} | {means} | {100 * p.mean:+.2f} ({100 * p.low:+.2f} .. {100 * p.high:+.2f}) |")
    ax.plot(np.arange(1, LOOKS + 1) * 80, 100 * whole.T)
    ax.set(title=title, xlabel="step", xticks=range(0, 801, 160))
axes[0].set_ylabel("test accuracy, %")
fig.tight_layout()
Markdown("\n".join(lines))

# %% [markdown]
# ## How to read it
#
# What was measured: with these 600 steps of 64 images, the two starts that look like faults gain. PyTorch's own initial
# weights are {gains: PyTorch's own first weights} points better than the preset's 0.02, and positions and a class token
# of standard deviation 1 are {gains: positions and class token of 1} points better than those of 0.02. The missing
# LayerNorm costs {costs: no final LayerNorm} points. A constant rate is {unclear: constant rate} points worse on
# average, and {unclear: constant rate, 0.01} at the notebook's 0.01. But the seeds differ so much that the table says
# {verdict: constant rate; constant rate, a third; constant rate, 0.01}. The second table has another budget (4,000
# images, each seen thirteen times) and four seeds. There the price of a constant rate is clear: it costs {costs
# cifar10_vit_48_watched: constant rate, watched} points.
#
# All four faults together are {gains: all four, 0.01} points better than the right network. The single prices do not
# add up to that. Perhaps a network with larger initial weights can use the high rate better; that was not measured.
#
# The luck is in the last column of the last table: on average it is larger at a constant rate. It is never below zero
# for a seed, because the best of ten on one half is at least as good there as any other of the ten. (An interval of
# Student's t does not know that.) So an interval that contains zero says only that the luck is small here. With a
# hundred evaluations, as in the notebook, it may be larger. To choose the best evaluation by other images gained
# nothing: on the other half, the best is no better than the last.
#
# How we read it: with initial weights of 0.02 and 48 inputs a block adds very little to its token, so the first
# hundreds of steps are spent on making the weights larger. Large positions help attention to tell tokens apart from the
# first step. Whether that lasts for 100 epochs was not measured, and 600 steps are too few to decide it, so the preset
# keeps the usual 0.02. A rate that falls ends the noise of large steps, so that the last epoch is as good as the best.
# Then there is nothing to choose, which is the better remedy. If something has to be chosen, `vit_jax.train` chooses it
# on 5,000 images that it sets aside from train, and it evaluates test once, at the end.

# %% [markdown]
# ## What the corrected network looks at
#
# This is the run that was trained at the top of this page. For some test images, the pictures show what the class token
# looks at in the last block, in each of the four heads:

# %%
net = vit_jax.load(summary["folder"])
pictures = test["image"][:6]
maps = net.capture(pictures, ["attention"])["attention"]  # [images, layers, heads, tokens, tokens]
fig, axes = plt.subplots(5, 6, figsize=(11, 9.4))
for column, (image, heads, answers) in enumerate(zip(pictures, maps[:, -1], net.predict(pictures, top=1), strict=True)):
    axes[0, column].imshow(image)
    axes[0, column].set_title(f"{answers[0][0]}?")
    for head in range(4):
        axes[head + 1, column].imshow(heads[head, 0, 1:].reshape(8, 8), cmap="magma")
for ax, title in zip(axes[:, 0], ("image", "head 1", "head 2", "head 3", "head 4"), strict=True):
    ax.set_ylabel(title)
for ax in axes.ravel():
    ax.set(xticks=[], yticks=[])
fig.tight_layout()

# %% [markdown]
# Left: an image cut into its 64 patches of 4 x 4 pixels. Middle: the 48 filters; each of them makes one of the 48
# numbers of a token from the pixels of a patch. Right: how similar every two positions are (cosine); each small square
# compares one place with all 64.

# %%
filters = np.asarray(net.model.patch.kernel[...]).reshape(4, 4, 3, 48)
filters = (filters - filters.min((0, 1, 2))) / np.ptp(filters, axis=(0, 1, 2))
filters = np.pad(filters, ((0, 1), (0, 1), (0, 0), (0, 0)), constant_values=1)
squares = pictures[0].reshape(8, 4, 8, 4, 3).transpose(0, 2, 1, 3, 4)
squares = np.pad(squares, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
rows = np.asarray(net.model.position[...])[1:]  # without the class token's
rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
alike = (rows @ rows.T).reshape(8, 8, 8, 8).transpose(0, 2, 1, 3).reshape(64, 64)
fig, axes = plt.subplots(1, 3, figsize=(11, 3.9))
axes[0].imshow(squares.transpose(0, 2, 1, 3, 4).reshape(40, 40, 3))
axes[0].set_title("patches of an image")
axes[1].imshow(filters.reshape(5, 5, 3, 6, 8).transpose(3, 0, 4, 1, 2).reshape(30, 40, 3))
axes[1].set_title("filters")
axes[2].imshow(alike, cmap="coolwarm", vmin=-1, vmax=1)
axes[2].set_title("positions")
for ax in axes:
    ax.set(xticks=[], yticks=[])
axes[2].set(xticks=np.arange(0, 65, 8) - 0.5, yticks=np.arange(0, 65, 8) - 0.5)
axes[2].tick_params(labelbottom=False, labelleft=False)
axes[2].grid(color="white")
fig.tight_layout()

# %% [markdown]
# ## Weights of the original
#
# `convert` is the command of this project that carries weights from one library to another. It reads the notebook's
# state dict (the names and arrays that a PyTorch network saves) and joins the query, key and value layers that each
# head has of its own. Here is a file with the names of the original and random weights.
#
# {verify}
#
# {unproven}

# %%
shapes = {
    "embedding.cls_token": (1, 1, 48), "embedding.position_embeddings": (1, 65, 48),
    "embedding.patch_embeddings.projection.weight": (48, 3, 4, 4), "embedding.patch_embeddings.projection.bias": (48,),
    "classifier.weight": (10, 48), "classifier.bias": (10,),
}  # fmt: skip
for i in range(4):
    block = f"encoder.blocks.{i}"
    linear = {f"attention.heads.{h}.{part}": (12, 48) for h in range(4) for part in ("query", "key", "value")}
    linear |= {"attention.output_projection": (48, 48), "mlp.dense_1": (192, 48), "mlp.dense_2": (48, 192)}
    for name, shape in linear.items():
        shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
    shapes |= {f"{block}.layernorm_{k}.{leaf}": (48,) for k in (1, 2) for leaf in ("weight", "bias")}
draw = np.random.default_rng(0)
save_file(
    {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}, "original.safetensors"
)


def convert(command):
    done = subprocess.run([sys.executable, "-m", "convert", *command.split()], capture_output=True, text=True)
    print(done.stdout + done.stderr)


convert("original.safetensors ours.safetensors --to vit-jax --set image=32 --verify")

# %% [markdown]
# The missing LayerNorm stays missing: with one, the network would compute something else. timm can be told to do
# without it; Hugging Face's ViT cannot, and `convert` refuses instead of adding one:

# %%
convert("original.safetensors timm.safetensors --to timm --set image=32")
convert("original.safetensors hugging-face --to huggingface --set image=32")

# %% [markdown]
# ## Exercises
#
# {exercises}
#
# 1. How many tokens enter the blocks, for 32 x 32 pixels, patches of 8 x 8 and a class token?
# 2. Write LayerNorm over the last axis of `[n, D]` in NumPy, without scale and bias.
# 3. Write the price of a fault. Given are two lists of scores, and entry i of both has the same seed. The result is
#    (mean, low, high) of the differences right - fault, with the 95 % interval of Student's t
#    (`scipy.stats.t.ppf(0.975, n - 1)`).
#
# Then change the experiment. In the cell that defines `network`, write `fields={"patch": 8, "depth": 2, **fields}`
# instead of `fields={"patch": 8, **fields}`, and run this cell and those below it: all variants are trained again, with
# two blocks. Do large positions still gain?
#
# {help}

# %%
answer_1 = None  # a number


def my_layer_norm(x, eps):
    return None  # your answer


def my_price_of(right, fault):
    return None  # your answer


# %%
check_answers("cifar10_vit_48", answer_1, my_layer_norm, my_price_of)
