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
# # A Vision Transformer from scratch on MNIST, corrected and measured
#
# A teaching notebook builds a very small Vision Transformer for the digits of MNIST. An image of 28 x 28 pixels becomes
# 49 patches of 16 numbers, and each patch becomes a token of 20 numbers. One block of attention with two heads works on
# these tokens, and the class token says which digit it is. The notebook reaches 91.45 % on MNIST's test set. Five of
# its parts do not do what its text says, and its output does not show that.
#
# Here each of the five faults is shown in a few lines of code that were written for this page, with **what it costs**:
# networks that differ in this one thing are trained with the same five seeds, the same batches in the same order and
# the same number of steps, and tested on the 10,000 test images. Then the corrected network is trained by `vit_jax`,
# and we look at what it has learned.
#
# {about}
#
# All variants together take {minutes} minutes of one core. To train the corrected network for its five epochs instead
# of one, write `FULL = True` in the next cell, or start Jupyter by `FULL=1 jupyter lab`.

# %%
import os
import tempfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from exercises import check_answers
from flax import nnx
from IPython.display import Markdown
from race import Budget, Variant, race, train_and_test
from safetensors.numpy import save_file

import vit_jax

FULL = os.environ.get("FULL", "") == "1"
os.chdir(tempfile.mkdtemp())  # for the run that is trained below

# %% [markdown]
# ## The corrected network
#
# {preset} Its help lists what was corrected; in a terminal: `python -m vit_jax.train mnist-20x1 --help`.
#
# {run}

# %%
preset = vit_jax.preset("mnist-20x1", fields={"epochs": 5 if FULL else 1})
summary = vit_jax.train(preset.run, preset="mnist-20x1")

# %% [markdown]
# ## The data, and what all variants have in common
#
# `vit_jax.train` has prepared MNIST if it was not there. `vit_jax` does not let you make the faults of this page. So
# the variants are trained by a short loop of our own, which is in `race.py`; its optimizer is Adam with a rate that
# rises and then falls to nothing. A `Variant` says how a network is built, how it sees a batch, and what its loss is;
# if wanted, also a function that changes each weight before it is used. `replace(right, ...)` is the right variant with
# one thing changed.


# %%
train, test = train_and_test("mnist")


def network(seed):
    return vit_jax.ViT(preset.run.model, rngs=nnx.Rngs(seed))


def see(net, batch):
    return net(batch["image"].astype(jnp.float32) / 255)


def cross_entropy(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def accuracy(predict, test):
    return {"accuracy": (predict(test).argmax(-1) == test["label"]).mean()}


right = Variant(network, see, cross_entropy)
# %% [markdown]
# ## Fault 1: the patches are not patches
#
# In the teaching notebook the image is flattened, and the row of 784 numbers is reshaped to 49 x 16. That gives runs of
# 16 pixels along the rows, not squares of 4 x 4. The second run, for example, has the last 12 pixels of the first row
# and the first 4 of the second row.
#
# Our network always cuts squares. To give it the same wrong patches, `as_strips` puts the 16 pixels of each run into
# one of the squares that the network will cut.


# %%
def as_strips(images):
    runs = images.reshape(-1, 7, 7, 4, 4)  # 49 runs of 16 pixels each, in the order of reading
    return runs.transpose(0, 1, 3, 2, 4).reshape(-1, 28, 28, 1)


numbers = np.arange(784).reshape(1, 28, 28, 1)
print(
    "pixels (row, column) of the second patch:", [divmod(int(n), 28) for n in as_strips(numbers)[0, :4, 4:8, 0].ravel()]
)

strips = replace(right, forward=lambda net, batch: see(net, {"image": as_strips(batch["image"])}))

# %%
fig, axes = plt.subplots(2, 2, figsize=(7, 7))
for ax, image, title in (
    (axes[0, 0], test["image"][0, :, :, 0], "the image"),
    (axes[0, 1], np.arange(784).reshape(28, 28) // 16 % 7, "the 49 runs of the reshaped image"),
    (axes[1, 0], np.add.outer(np.arange(28) // 4, 2 * (np.arange(28) // 4)) % 7, "the 49 squares of 4 x 4"),
    (axes[1, 1], as_strips(test["image"][:1])[0, :, :, 0], "the runs, laid out as squares"),
):
    ax.imshow(image, cmap="gray" if image.max() > 7 else "tab10")
    ax.set(title=title, xticks=[], yticks=[])
fig.tight_layout()

# %% [markdown]
# ## Fault 2: query, key and value never train
#
# In the notebook the three linear maps of each head are kept in Python lists. PyTorch finds the parameters of a module
# by looking through its attributes, but it does not look into lists. So the optimizer never hears of these maps, and
# they are missing in a saved file. To imitate the first of these in our network, we cut off the gradient of the same
# maps.


# %%
def untrained(name, x):
    return jax.lax.stop_gradient(x) if any(f".{part}." in name for part in ("query", "key", "value")) else x


frozen = replace(right, weights=untrained)

# %% [markdown]
# In PyTorch this mistake is easily made (this cell needs PyTorch, and says so where there is none):

# %%
try:
    from torch import nn
except ImportError:
    print("PyTorch is not installed here")
else:

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.in_a_list = [nn.Linear(10, 10) for _ in range(2)]
            self.in_a_module_list = nn.ModuleList(nn.Linear(10, 10) for _ in range(2))

    print("parameters that the optimizer is given:", [name for name, _ in Heads().named_parameters()])

# %% [markdown]
# ## Fault 3: a softmax before the loss
#
# The notebook's network ends in a softmax, and its output goes into a cross entropy that takes logits and applies a
# softmax of its own. What comes in is between 0 and 1. So even a network that is certain, and right, has a loss of
# [ln(e + 9) - 1 = 1.461](../vit_jax/tasks/next_token.py#L87 "losses = jax.nn.logsumexp(logits, -1)"). And the gradient
# of a network that is certain, and wrong, is nearly zero.
#
# The loss then always lies between 1.46 and 2.46, so this network may need another learning rate than the right one.
# Therefore some variants are also trained at a tenth of the rate: `rate=0.1` in a variant means 0.1 times the rate of
# all others.

# %%
certain = 100 * jax.nn.one_hot(jnp.arange(10), 10)
for name, outputs in (("logits", certain), ("probabilities", jax.nn.softmax(certain))):
    print(f"loss of {name} that are all right: {cross_entropy(outputs, {'label': jnp.arange(10)}):.3f}")

twice = replace(right, loss=lambda logits, batch: cross_entropy(jax.nn.softmax(logits), batch))
slow, slow_twice = replace(right, rate=0.1), replace(twice, rate=0.1)

# %% [markdown]
# ## Fault 4: LayerNorm over the whole image
#
# The LayerNorms of the notebook are given the shape (50, 20), so each takes one mean and one variance over all 50
# tokens ([ours: over the 20 numbers of each
# token](../vit_jax/models/layers.py#L125 "inverse = jax.lax.rsqrt(store(jnp.square(x)")). So each token depends on all
# others before attention has begun. And a token with large numbers stays larger than the others.


# %%
class WideNorm(nnx.Module):
    def __init__(self):
        self.scale, self.bias = nnx.Param(jnp.ones((50, 20))), nnx.Param(jnp.zeros((50, 20)))

    def __call__(self, x):
        x = x - x.mean((1, 2), keepdims=True)
        return x / jnp.sqrt((x**2).mean((1, 2), keepdims=True) + 1e-5) * self.scale[...] + self.bias[...]


def with_wide_norms(seed):
    net = network(seed)
    net.blocks[0].norm1, net.blocks[0].norm2 = WideNorm(), WideNorm()
    return net


x = np.random.default_rng(0).normal(size=(1, 50, 20))
other = x.copy()
other[0, 7, 0] += 3  # a feature of one token of fifty
for name, norm in (("over a token", network(0).blocks[0].norm1), ("over the image", WideNorm())):
    moved = np.abs(norm(jnp.asarray(x)) - norm(jnp.asarray(other)))[0].max(-1)
    print(f"LayerNorm {name}: {int((moved > 1e-6).sum())} of 50 tokens change when one does")

wide = replace(right, network=with_wide_norms)

# %% [markdown]
# ## Fault 5: heads that see slices, and nothing that joins them
#
# In the notebook, head 1 gets the numbers 1 to 10 of each token and head 2 the other ten, and their results are put
# side by side. There is no [projection](../vit_jax/models/attention.py#L112 "return self.out.from_heads(context)"),
# which in every published Transformer mixes what the heads have found.
#
# To get the same from our network, we set the weights of query, key and value to zero where a head would read the
# other's half, and make the projection the identity.

# %%
halves = jnp.kron(jnp.eye(2), jnp.ones((10, 10)))


def sliced(name, x):
    if any(name.endswith(f"{part}.kernel") for part in ("query", "key", "value")):
        return x * halves
    return jnp.eye(20) if name.endswith("attention.out.kernel") else 0 * x if name.endswith("attention.out.bias") else x


slices = replace(right, weights=sliced)

# %% [markdown]
# ## Smaller slips
#
# The class token starts as uniform numbers between 0 and 1, so their root mean square is 0.58; usual is 0.02. That is
# measured below, too. Three more slips do not change the accuracy:
#
# - The loss that the notebook prints for an epoch is too small by a factor. It adds up the means of the batches, each
#   divided by the size of the batch (16), and so has to be multiplied by 16 and divided by the number of batches before
#   it is compared with 1.461.
# - Attention is computed twice in each step, and one of the results is thrown away.
# - The loop over the test set is not inside `torch.no_grad()`, so it stores what a backward pass would need, for
#   nothing.


# %%
def with_large_token(seed):
    net = network(seed)
    net.cls_token[...] = jax.random.uniform(jax.random.key(seed), net.cls_token.shape)
    return net


large = replace(right, network=with_large_token)

# %% [markdown]
# ## What each costs
#
# {prices}
#
# Here the accuracy is on test, with five seeds. The last four rows are trained at a tenth of the rate, and three of
# them are compared with the right network at the same rate.

# %%
together = Variant(
    with_wide_norms,
    strips.forward,
    twice.loss,
    weights=lambda name, x: untrained(name, sliced(name, x)),
)
variants = {
    "right": right,
    "strips for patches": strips,
    "query, key and value never train": frozen,
    "softmax before the loss": twice,
    "LayerNorm over the whole image": wide,
    "heads on slices, no projection": slices,
    "class token from 0..1": large,
    "the first five together": together,
    "right, at a tenth of the rate": slow,
    "softmax, at a tenth of the rate": slow_twice,
    "LayerNorm over the image, at a tenth of the rate": replace(wide, rate=0.1),
    "all five, at a tenth of the rate": replace(together, rate=0.1),
}
budget = Budget(steps=1875, batch=32, rate=2e-2)  # an epoch
against = dict.fromkeys([title for title in variants if "a tenth" in title], "right, at a tenth of the rate")
found = race("mnist_vit_from_scratch", variants, train, test, accuracy, budget, against)
Markdown(found.markdown())

# %% [markdown]
# ## How to read it
#
# What was measured: the second softmax ruins the training. At the full rate the best of the five seeds gets {greatest:
# softmax before the loss} %, and the price is {costs: softmax before the loss} points. At a tenth of the rate, where
# both networks learn, it still costs {costs: softmax, at a tenth of the rate}. Heads on slices cost {costs: heads on
# slices, no projection}. Strips instead of patches, maps that never train and a large class token are {verdict: strips
# for patches; query, key and value never train; class token from 0..1}. The LayerNorm over the whole image gains
# {gains: LayerNorm over the whole image} points at the full rate; at a tenth of it the price is {verdict: LayerNorm
# over the image, at a tenth of the rate}.
#
# At the full rate all five faults together cost {costs: the first five together} points, less than the softmax alone.
# At a tenth of the rate they cost {costs: all five, at a tenth of the rate}, more than the softmax alone. So prices do
# not add up.
#
# Why does the teaching notebook reach 91.45 % with these five faults, more than the right network in this table? It
# trains much longer: five epochs in batches of 16, 18,750 steps at a constant rate of 0.01, and here each network gets
# one epoch, 1,875 steps. Trained as long as that and at that rate, our network with all five faults reaches 77.2 and
# 90.5 % (two seeds, [measured here](../benchmarks/results/2026-11-26-mnist-faults.md)), and the corrected network 91.0
# % (one seed, [measured here](../benchmarks/results/2026-11-26-headlines.md)). So a single number such as 91.45 % is
# also a matter of luck.
#
# How we read it: maps that never train still mix the tokens, at random, and the layers after them learn to use the
# mixture. Runs of 16 pixels are poor patches, but every digit is cut into the same 49 runs, and the network has to
# learn in both cases what its patches mean. The full rate may be too high for LayerNorms of single tokens, and training
# with the wide norm may be more stable. That may also be why the softmax does less harm when all five faults come
# together. None of this is a reason to keep a part that does not do what its text says.

# %% [markdown]
# ## What the corrected network looks at
#
# Here is the run that was trained at the top of this page. Printed are its answers for the six images, with their
# probabilities. The pictures show how much the class token attends to each of the 49 patches, in both heads:

# %%
net = vit_jax.load(summary["folder"])
images = test["image"][:6]
print(", ".join(f"{answers[0][0]} ({answers[0][1]:.2f})" for answers in net.predict(images, top=1)))

maps = net.capture(images, ["attention"])["attention"]  # [images, layers, heads, tokens, tokens]
fig, axes = plt.subplots(3, 6, figsize=(11, 5.6))
for column, (image, heads) in enumerate(zip(images[..., 0], maps[:, 0], strict=True)):
    axes[0, column].imshow(image, cmap="gray")
    for head in range(2):
        axes[head + 1, column].imshow(heads[head, 0, 1:].reshape(7, 7), cmap="magma")
for ax, title in zip(axes[:, 0], ("image", "head 1", "head 2"), strict=True):
    ax.set_ylabel(title)
for ax in axes.ravel():
    ax.set(xticks=[], yticks=[])
fig.tight_layout()

# %% [markdown]
# The positions of this network start as sinusoids: sines and cosines of many frequencies (Vaswani et al. 2017). Then
# they are trained like other weights. The pictures show how similar every two positions are (the cosine of the angle
# between them), at the start and after training. Each small square compares one patch with all 49. At the start, places
# that follow each other in the order of reading are similar. After training the positions of patches at the edge are
# similar to each other, too: these patches are black in every image.


# %%
def alike(position):
    rows = np.asarray(position)[1:]  # without the class token's
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ rows.T).reshape(7, 7, 7, 7).transpose(0, 2, 1, 3).reshape(49, 49)


fig, axes = plt.subplots(1, 2, figsize=(9, 4.5))
for ax, position, title in zip(
    axes, (network(0).position[...], net.model.position[...]), ("as they start", "as they were trained"), strict=True
):
    ax.imshow(alike(position), cmap="coolwarm", vmin=-1, vmax=1)
    ax.set(title=title, xticks=np.arange(0, 50, 7) - 0.5, yticks=np.arange(0, 50, 7) - 0.5)
    ax.tick_params(labelbottom=False, labelleft=False)
    ax.grid(color="white")
fig.tight_layout()

# %% [markdown]
# ## Weights of the original
#
# `convert` is the command of this project that carries weights from one library to another. It can carry those of most
# teaching notebooks to `vit_jax`, to timm or to Hugging Face. `vit_jax.load` uses it. The weights of this notebook
# cannot be carried, because query, key and value, on which every output depends, are missing in its file (fault 2).
# Here is a file with the names and shapes that the notebook saves, and what `vit_jax.load` says of it:

# %%
shapes = {
    "class_token": (1, 20), "linear_mapper.weight": (20, 16), "linear_mapper.bias": (20,),
    "ln1.weight": (50, 20), "ln1.bias": (50, 20), "ln2.weight": (50, 20), "ln2.bias": (50, 20),
    "enc_mlp.0.weight": (20, 20), "enc_mlp.0.bias": (20,), "mlp.0.weight": (10, 20), "mlp.0.bias": (10,),
}  # fmt: skip
save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, "original.safetensors")
try:
    vit_jax.load("original.safetensors")
except vit_jax.UserError as error:
    print(error)

# %% [markdown]
# The corrected network is saved with all its weights. Here it is exported and read again. (`to="timm"` would write it
# with the names of timm.)

# %%
vit_jax.export(net, "mnist.safetensors")
again = vit_jax.load("mnist.safetensors")
print("largest difference of the logits:", float(np.abs(again.logits(images) - net.logits(images)).max()))

# %% [markdown]
# ## Exercises
#
# {exercises}
#
# 1. How many numbers (parameters) does the corrected network have if it has two blocks instead of one? The network is
#    `vit_jax.build("mnist-20x1", depth=2)`, and `sum(x.size for x in jax.tree.leaves(nnx.state(net, nnx.Param)))`
#    counts the numbers of a network `net`.
# 2. Write a softmax over the last axis in NumPy that is also right for scores such as 1000 and 1001, whose exponentials
#    are too large for a float.
# 3. Write the cut into patches in NumPy: images `[n, 28, 28]` become `[n, 49, 16]`, squares of 4 x 4 pixels in the
#    order of reading.
#
# Then change the experiment. In the cell of the table, write `rate=1e-2` instead of `rate=2e-2` in `budget`, and run
# this cell and the next: all variants are trained again, at half the rate. Does the LayerNorm over the whole image
# still gain?
#
# {help}

# %%
answer_1 = None  # a number


def my_softmax(scores):
    return None  # your answer


def my_patches(images):
    return None  # your answer


# %%
check_answers("mnist_vit_from_scratch", answer_1, my_softmax, my_patches)
