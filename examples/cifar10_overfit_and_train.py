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
# # Overfit one batch, then train: a check and two epochs on CIFAR-10, corrected and measured
#
# A teaching notebook takes torchvision's Vision Transformer, 128 wide with six blocks, and follows good advice: before
# training on 50,000 images, see whether the network can learn 64 of them by heart. Its check fails: at step 90 of 100
# it prints 84 %, not 100 %, and further down the same check prints 20 %. The notebook trains for its two epochs all the
# same, from the weights that the check has left. The better of two test accuracies is 42.3 %.
#
# The network is right. What is wrong is how it is trained, and how the notebook was run. Here each fault is shown in a
# few lines of code that were written for this page, with **what it costs**: networks that differ in this one thing are
# trained with the same seeds, the same batches in the same order and as many steps. Then the check and the training are
# done by `vit_jax`.
#
# For this page the network is 64 wide and has four blocks. The figures are shipped in `prices/`. If you change a
# number, a line of code or an image, the variants that this concerns are trained on your machine and kept in
# `prices/own/`; those of the training take {minutes} minutes of one core, those of the check {minutes cifar10_overfit}.
# For each variant a line says which figures it shows. `FULL=1` trains the corrected network for its two epochs at full
# size.

# %%
import os
import subprocess
import sys
import tempfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import tensorflow_datasets as tfds
from exercises import check_answers
from flax import nnx
from IPython.display import Markdown
from race import Budget, Variant, race
from safetensors.numpy import save_file

import vit_jax

FULL = os.environ.get("FULL", "") == "1"
os.chdir(tempfile.mkdtemp())  # for the runs below

# %% [markdown]
# ## The corrected check
#
# `overfit_batches` trains on the first batch alone, without augmentation, dropout, weight decay and schedule, for 100
# steps. (The preset's label smoothing of 0.1 stays, so the loss cannot fall to 0.) The line `train last` has the
# accuracy on these 64 images; there is no other result, and its weights are of no further use.

# %%
small = {} if FULL else {"width": 64, "depth": 4, "hidden": 128, "epochs": 1}
check = vit_jax.preset("cifar10-128x6", fields=small | {"overfit_batches": 1, "name": "check"})
checked = vit_jax.train(check.run, preset="cifar10-128x6")

# %% [markdown]
# ## The corrected training
#
# It is a preset. Its help lists what was corrected: `python -m vit_jax.train cifar10-128x6 --help`. It starts from
# random weights.

# %%
preset = vit_jax.preset("cifar10-128x6", fields=small)
summary = vit_jax.train(preset.run, preset="cifar10-128x6")

# %% [markdown]
# ## The data, and what all variants have in common
#
# The preset uses Muon; below the right network has the AdamW that the notebook's text speaks of, with a rate that rises
# to 0.002 and falls to nothing.


# %%
def cifar10(split):
    examples = tfds.data_source("cifar10", split=split)
    rows = examples.__getitems__(range(len(examples)))
    return {name: np.stack([row[name] for row in rows]) for name in ("image", "label")}


train, test = cifar10("train"), cifar10("test")
first = {name: x[:64] for name, x in train.items()}
RATE, DECAY = 2e-3, 0.05


def network(seed, **fields):
    config = vit_jax.preset("cifar10-128x6", fields={"width": 64, "depth": 4, "hidden": 128, **fields}).run.model
    return vit_jax.ViT(config, rngs=nnx.Rngs(seed))


def see(net, batch):
    return net(batch["image"].astype(jnp.float32) / 127.5 - 1)


def cross_entropy(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def accuracy(predict, test):
    return {"accuracy": (predict(test).argmax(-1) == test["label"]).mean()}


def decoupled(steps, rate):
    return optax.adamw(optax.cosine_onecycle_schedule(steps, rate), b2=0.99, weight_decay=DECAY)


right = Variant(network, see, cross_entropy, optimizer=decoupled)

# %% [markdown]
# ## Fault 1: a rate 20 times too low
#
# The notebook's rate is 0.0001, which is usual for fine-tuning a network that is already trained.

# %%
slow = replace(right, rate=1 / 20)

# %% [markdown]
# ## Fault 2: inputs that are not normalised
#
# Pixels come as numbers between 0 and 1, so what all images have in common, their mean, is larger than what tells them
# apart.


# %%
def from_zero(net, batch):
    return net(batch["image"].astype(jnp.float32) / 255)


for name, x in (("between 0 and 1", first["image"] / 255), ("normalised", first["image"] / 127.5 - 1)):
    print(f"{name}: mean {x.mean():+.2f}, standard deviation {x.std():.2f}")
bright = replace(right, forward=from_zero)

# %% [markdown]
# ## Fault 3: a decay that Adam divides away
#
# The check hands a weight decay to Adam, which adds it to the gradient (L2) and then divides by the size of the
# gradients. So weights with large gradients hardly decay, and weights with small ones may decay to nothing. AdamW takes
# the decay off the weight itself, and was invented for this reason (Loshchilov and Hutter 2019). The notebook's check
# has a coefficient of 0.0001, and its training none. Below, L2 gets 0.05, the coefficient of the right network, so its
# price is what the mix-up would cost, not what the notebook paid. Here are three weights of 1, whose gradients differ
# in size and change their sign in every step, so that they add up to nothing:


# %%
def coupled(steps, rate):
    adam = optax.adam(optax.cosine_onecycle_schedule(steps, rate), b2=0.99)
    return optax.chain(optax.add_decayed_weights(DECAY), adam)


def after(optimizer, steps=400):
    weights = jnp.ones(3)
    state = optimizer.init(weights)
    for step in range(steps):
        updates, state = optimizer.update((-1) ** step * jnp.array([0.1, 1.0, 10.0]), state, weights)
        weights = optax.apply_updates(weights, updates)
    return ", ".join(f"{x:.2f}" for x in weights)


print("gradients of 0.1, 1 and 10")
print("left by a decoupled decay:        ", after(decoupled(400, 0.01)))
print("left by one added to the gradient:", after(coupled(400, 0.01)))
l2 = replace(right, optimizer=coupled)

# %% [markdown]
# ## Fault 4: training that starts from weights that know one batch by heart
#
# The check leaves its weights in the network, and the training goes on with them. Here is the check, as short as it can
# be, at the right rate or the notebook's:


# %%
def overfitted(seed, rate=RATE, forward=see):
    graph, state = nnx.split(network(seed), nnx.Param)
    optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.adam(rate))

    def step(carry, _):
        gradients = jax.grad(lambda state: cross_entropy(forward(nnx.merge(graph, state), first), first))(carry[0])
        updates, moments = optimizer.update(gradients, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), None

    scan = jax.jit(lambda state: jax.lax.scan(step, (state, optimizer.init(state)), length=100)[0][0])
    return nnx.merge(graph, scan(state))


net = overfitted(0)
for name, images in (("its 64 images", first), ("1,000 test images", {k: x[:1000] for k, x in test.items()})):
    logits = see(net, images)
    correct = np.mean(logits.argmax(-1) == images["label"])
    print(f"{name}: accuracy {correct:.2f}, loss {cross_entropy(logits, images):.2f}")
by_heart = replace(right, network=overfitted)

# %% [markdown]
# ## What each costs
#
# A price is the mean difference to the right network with the same seed, in points of accuracy, with its 95 % interval
# (Student's t). First the check itself: 100 steps on 64 images, five seeds, accuracy on the same 64.


# %%
def as_the_original(steps, rate):
    return optax.chain(optax.add_decayed_weights(1e-4), optax.adam(rate))


checks = {
    "right": right,
    "rate 20 times lower": slow,
    "not normalised": bright,
    "decay added to the gradient": l2,
    "all three, as in the original": Variant(network, from_zero, cross_entropy, rate=1 / 20, optimizer=as_the_original),
}
checked = race("cifar10_overfit", checks, first, first, accuracy, Budget(steps=100, batch=64, rate=RATE, seeds=5))
Markdown(checked.markdown())

# %% [markdown]
# Then the training, on all images, three seeds, accuracy on test. The original does not decay weights here; its rate is
# constant.


# %%
def constant(steps, rate):
    return optax.adam(rate)


def as_the_original_starts(seed):
    return overfitted(seed, RATE / 20, from_zero)


variants = {
    "right": replace(right, looks=2),
    "rate 20 times lower": slow,
    "not normalised": bright,
    "decay added to the gradient": l2,
    "from weights that know a batch": by_heart,
    "all, as in the original": Variant(
        as_the_original_starts, from_zero, cross_entropy, rate=1 / 20, optimizer=constant, looks=2
    ),
}
budget = Budget(steps=600, batch=64, rate=RATE, seeds=3)
found = race("cifar10_overfit_and_train", variants, train, test, accuracy, budget)
Markdown(found.markdown())

# %% [markdown]
# ## Fault 5: the best of two
#
# The notebook evaluates the test set after each of its two epochs and reports the better one. Choosing on test is a
# fault of method, and [cifar10_vit_48](cifar10_vit_48.ipynb) measures its price, with ten looks. With two looks, at a
# network that is still learning, there is little to choose:

# %%
for title in ("right", "all, as in the original"):
    half, end = (found.scores[title][each] for each in ("accuracy after 1 of 2", "accuracy"))
    print(f"{title}: in the middle {np.round(100 * np.array(half), 1)}, at the end {np.round(100 * np.array(end), 1)}")

# %% [markdown]
# ## Fault 6: outputs of cells that were changed since
#
# A notebook keeps what each cell printed when it was run last, and nothing tells when that was. The two results of one
# check cannot both be of the code that stands above them. Nor can another output: it shows a matrix of 2304 x 768 in
# layer 11, of a network that is said to be 128 wide with six layers. This is how it can happen: a cell is changed and
# executed, a second one that depends on it is not executed again, and a third one is.

# %%
width, build, show = "width = 128", "weights = np.zeros((3 * width, width))", "print(width, 'wide:', weights.shape)"


def kernel(*executed):
    names = {"np": np}
    for cell in executed:
        exec(cell, names)


print("from top to bottom, ", end="")
kernel(width, build, show)
print("the same three cells after the first was tried with 768 and changed back, ", end="")
kernel("width = 768", build, width, show)

# %% [markdown]
# The price is not in points: nobody can tell of which network the printed accuracy is. (By the notebook's recipe the
# network of its text reaches 42.8 +- 0.8 %, two seeds ([measured here](../benchmarks/results/2026-11-23-recipes.md)),
# so the 42.3 % may well be its own.) The remedy is to restart and run all before anything is believed: the numbers
# beside the cells are then 1, 2, 3, ..., as they are on this page, of which a test makes sure. And one can compare what
# a page prints about a network with what its text says:

# %%
for name, fields in (
    ("128 wide, 6 blocks", {"width": 128, "depth": 6, "hidden": 256}),
    ("768 wide, 12 blocks", {"width": 768, "depth": 12, "heads": 12, "hidden": 3072}),
):
    net = nnx.eval_shape(lambda fields=fields: network(0, **fields))
    numbers = sum(x.size for x in jax.tree.leaves(nnx.state(net, nnx.Param)))
    query = net.blocks[0].attention.query.kernel.shape
    print(f"{name}: {numbers:,} numbers; query, key and value in one matrix: {3 * query[1]} x {query[0]}")

# %% [markdown]
# ## How to read it
#
# What was measured: the rate costs most. At a twentieth of the right one the check gets to {score cifar10_overfit: rate
# 20 times lower} % in its 100 steps, not to 100 %, and the training loses {price: rate 20 times lower} of {score:
# right} points. At the right rate the check passes whatever else is wrong, but for one image of 64 in one of five
# seeds. For inputs between 0 and 1, and for starting from weights that know a batch by heart, the table says *unclear*.
# A decay of 0.05 that is added to the gradient is nothing to the check and costs {price: decay added to the gradient}
# points of the training; the notebook's own 0.0001 is in the check alone, and its price by itself was not measured. All
# together, as the original trains, cost {price: all, as in the original} points, less than the low rate alone: that run
# has no decay, and its rate is constant, so that it is on average about twice that of a schedule with the same peak.
# That is how we explain it; it was not measured apart.
#
# How we read it: the check did its work. It failed, and it was right to fail: with this rate the network learns too
# little in so many steps. The fault was to go on all the same. But a check that passes says less than one might think,
# since the decay that ruins the training passes it. In 600 steps, weights that know one batch by heart forget it again
# at a rate like this. That they cost nothing is no reason to start from them: the result is then that of two trainings,
# and the page describes one.

# %% [markdown]
# ## What the corrected network looks at
#
# The run that was trained at the top of this page. For some test images, what the class token looks at in the last
# block, in each of the four heads, over the sixteen patches:

# %%
net = vit_jax.load(summary["folder"])
pictures = test["image"][:6]
maps = net.capture(pictures, ["attention"])["attention"]  # [images, layers, heads, tokens, tokens]
fig, axes = plt.subplots(5, 6, figsize=(11, 9.4))
for column, (image, heads, answers) in enumerate(zip(pictures, maps[:, -1], net.predict(pictures, top=1), strict=True)):
    axes[0, column].imshow(image)
    axes[0, column].set_title(f"{answers[0][0]}?")
    for head in range(4):
        axes[head + 1, column].imshow(heads[head, 0, 1:].reshape(4, 4), cmap="magma")
for ax, title in zip(axes[:, 0], ("image", "head 1", "head 2", "head 3", "head 4"), strict=True):
    ax.set_ylabel(title)
for ax in axes.ravel():
    ax.set(xticks=[], yticks=[])
fig.tight_layout()

# %% [markdown]
# Its patches: an image cut into the sixteen squares of 8 x 8 pixels, and the first 24 of the filters by which the
# numbers of a token are computed from one of them. And how similar the positions of the places are to each other
# (cosine): every small square compares one place with all sixteen.

# %%
filters = np.asarray(net.model.patch.kernel[...]).reshape(8, 8, 3, -1)[..., :24]
filters = (filters - filters.min((0, 1, 2))) / np.ptp(filters, axis=(0, 1, 2))
filters = np.pad(filters, ((0, 1), (0, 1), (0, 0), (0, 0)), constant_values=1)
squares = pictures[0].reshape(4, 8, 4, 8, 3).transpose(0, 2, 1, 3, 4)
squares = np.pad(squares, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
rows = np.asarray(net.model.position[...])[1:]  # without the class token's
rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
alike = (rows @ rows.T).reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 16)
fig, axes = plt.subplots(1, 3, figsize=(11, 3.9))
axes[0].imshow(squares.transpose(0, 2, 1, 3, 4).reshape(36, 36, 3))
axes[0].set_title("patches of an image")
axes[1].imshow(filters.reshape(9, 9, 3, 4, 6).transpose(3, 0, 4, 1, 2).reshape(36, 54, 3))
axes[1].set_title("filters")
axes[2].imshow(alike, cmap="coolwarm", vmin=-1, vmax=1)
axes[2].set_title("positions")
for ax in axes[:2]:
    ax.set(xticks=[], yticks=[])
axes[2].set(xticks=np.arange(0, 17, 4) - 0.5, yticks=np.arange(0, 17, 4) - 0.5)
axes[2].tick_params(labelbottom=False, labelleft=False)
axes[2].grid(color="white")
fig.tight_layout()

# %% [markdown]
# ## Weights of the original
#
# They are those of a torchvision network, which `convert` reads and writes. Here is a file with its names, of the
# original's sizes, with random weights. `--verify` computes both files as functions and keeps what it prints as a
# certificate beside the file (this needs PyTorch, and torchvision, which builds the network from the file):

# %%
shapes = {
    "class_token": (1, 1, 128), "encoder.pos_embedding": (1, 17, 128), "conv_proj.weight": (128, 3, 8, 8),
    "conv_proj.bias": (128,), "encoder.ln.weight": (128,), "encoder.ln.bias": (128,),
    "heads.head.weight": (10, 128), "heads.head.bias": (10,),
}  # fmt: skip
for i in range(6):
    layer = f"encoder.layers.encoder_layer_{i}"
    shapes |= {f"{layer}.self_attention.in_proj_weight": (384, 128), f"{layer}.self_attention.in_proj_bias": (384,)}
    for name, n_out, n_in in (("self_attention.out_proj", 128, 128), ("mlp.0", 256, 128), ("mlp.3", 128, 256)):
        shapes |= {f"{layer}.{name}.weight": (n_out, n_in), f"{layer}.{name}.bias": (n_out,)}
    shapes |= {f"{layer}.{norm}.{leaf}": (128,) for norm in ("ln_1", "ln_2") for leaf in ("weight", "bias")}
draw = np.random.default_rng(0)
save_file(
    {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}, "original.safetensors"
)
print(f"{sum(np.prod(shape) for shape in shapes.values()):,} numbers, as in the original")


def convert(command):
    done = subprocess.run([sys.executable, "-m", "convert", *command.split()], capture_output=True, text=True)
    print(done.stdout + done.stderr)


convert("original.safetensors ours.safetensors --to vit-jax --set image=32 --set heads=4 --verify")

# %% [markdown]
# The network that was trained above leaves the same way, for torchvision or for others. These know nothing of the
# temperature by which its logits are divided before they become probabilities, so it goes into the head:

# %%
x = pictures.astype(np.float32) / 127.5 - 1
logits = net.model(x) / net.outputs.temperature
for layout in ("torchvision", "timm"):
    vit_jax.export(net, f"{layout}.safetensors", to=layout)
    again = vit_jax.load(f"{layout}.safetensors")
    print(f"{layout}: largest difference of the logits {np.abs(again.model(x) - logits).max():.1e}")

# %% [markdown]
# ## Exercises
#
# Fill in your answers and run both cells: the second one says what is right. Then change the experiment: another depth,
# loss or budget in a cell above, and run the cells from there on. The table shows your figures.
#
# 1. What is the loss of a network that gives all ten classes the same probability?
# 2. Write the scaling of pixels 0..255 (uint8) to -1..1.
# 3. Write the accuracy of logits `[n, K]` and labels `[n]`.
#
# Words that are new to you are in the [glossary](../docs/glossary.md). If a network of yours does not learn, [this
# page](../docs/learning.md) helps.

# %%
answer_1 = None  # a number


def my_normalise(images):
    return None  # your answer


def my_accuracy(logits, labels):
    return None  # your answer


# %%
check_answers("cifar10_overfit_and_train", answer_1, my_normalise, my_accuracy)
