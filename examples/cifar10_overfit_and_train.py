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
# it prints 84 %, not 100 %. (Further down a second output of the same check shows 20 %; see fault 6.) Nevertheless the
# notebook trains for two epochs, and it starts from the weights that the check has left. The better of two test
# accuracies is 42.3 %.
#
# The network is right. What is wrong is how it is trained, and how the notebook was run. Here each fault is shown in a
# few lines of code that were written for this page, with **what it costs**: networks that differ in this one thing are
# trained with the same seeds, the same batches in the same order and as many steps. Then the check and the training are
# done by `vit_jax`. For this page the network is 64 wide and has four blocks.
#
# {about}
#
# The variants of the training take {minutes} minutes of one core, and those of the check {minutes cifar10_overfit}
# minute. To train the corrected network for its two epochs at full size, write `FULL = True` in the next cell, or start
# Jupyter by `FULL=1 jupyter lab`.

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
from exercises import check_answers
from flax import nnx
from IPython.display import Markdown
from race import Budget, Variant, race, train_and_test
from safetensors.numpy import save_file

import vit_jax

FULL = os.environ.get("FULL", "") == "1"
os.chdir(tempfile.mkdtemp())  # for the runs below

# %% [markdown]
# ## The corrected check
#
# The setting `overfit_batches=1` in the next cell trains on the first batch alone: 100 steps without augmentation,
# dropout and weight decay, at a constant learning rate. The line `train last` has the accuracy on these 64 images.
# There is no other result: the weights know only these images, so do not predict with them, although the last lines of
# the output say how.
#
# The output has two losses. The one in the progress line includes the preset's label smoothing of 0.1 and cannot fall
# below 0.50; the others do not include it.
#
# {run}

# %%
small = {} if FULL else {"width": 64, "depth": 4, "hidden": 128, "epochs": 1}
check = vit_jax.preset("cifar10-128x6", fields=small | {"overfit_batches": 1, "name": "check"})
checked = vit_jax.train(check.run, preset="cifar10-128x6")

# %% [markdown]
# ## The corrected training
#
# {preset} Its help lists what was corrected; in a terminal: `python -m vit_jax.train cifar10-128x6 --help`. It starts
# from random weights.

# %%
preset = vit_jax.preset("cifar10-128x6", fields=small)
summary = vit_jax.train(preset.run, preset="cifar10-128x6")

# %% [markdown]
# ## The data, and what all variants have in common
#
# The preset uses Muon, a newer optimizer for matrices, which divides a whole matrix of momentum by its size instead of
# each number (see the glossary). The teaching notebook speaks of AdamW. So below, the right network has AdamW, with a
# learning rate that rises to 0.002 and falls to nothing. All variants are trained by a short loop, which is in
# `race.py`; `replace(right, ...)` is the right variant with one thing changed.


# %%
train, test = train_and_test("cifar10")
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
# The notebook's learning rate is 0.0001, which is usual for fine-tuning a network that is already trained. (`rate=1 /
# 20` of a variant means a twentieth of the rate of all others, which is `RATE` above.)

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
# ## Fault 3: a decay that Adam changes
#
# Weight decay makes each weight a little smaller in every step. The check of the notebook hands its weight decay to
# Adam, which adds it to the gradient (this is L2) and then divides the sum by the size of the gradients. So weights
# with large gradients hardly decay, and weights with small gradients decay much too fast. AdamW makes the weights
# smaller apart from the gradient, and was invented for this reason (Loshchilov and Hutter 2019).
#
# In this page's test, L2 gets the coefficient of the right network, 0.05. The notebook itself has 0.0001 in its check
# and none in its training, so its own price is smaller than the one in the table.
#
# Here are three weights of 1. Their gradients differ in size and change their sign in every step, so that they add up
# to nothing:


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
# The check leaves its weights in the network, and the training goes on with them. Here is the check in a few lines:
# `state` has the parameters and `graph` the rest of the network, and `scan` is a loop of 100 steps. Below it is run at
# the right rate; the variant *all, as in the original* runs it at the notebook's.


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
# {prices}
#
# First the check itself: 100 steps on 64 images, five seeds, accuracy on the same 64 images. In the last row, the decay
# that is added to the gradient is the notebook's 0.0001.


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
# Then the training, on all images, with three seeds and the accuracy on test. The last row is as the notebook trains:
# without a decay, and at a constant rate.


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
# fault of method, and [cifar10_vit_48](cifar10_vit_48.ipynb) measures its price, with ten evaluations. With two
# evaluations of a network that is still learning, there is little to choose:

# %%
for title in ("right", "all, as in the original"):
    half, end = (found.scores[title][each] for each in ("accuracy after 1 of 2", "accuracy"))
    print(f"{title}: in the middle {np.round(100 * np.array(half), 1)}, at the end {np.round(100 * np.array(end), 1)}")

# %% [markdown]
# ## Fault 6: outputs of cells that were changed since
#
# A notebook keeps what each cell printed when it was run last, and nothing tells when that was. The notebook shows 84 %
# and 20 % for the same check, so at least one of them was not made by the code above it. Another output shows a matrix
# of 2304 x 768 in layer 11, but the network is said to be 128 wide with six layers. This is how it can happen: a cell
# is changed and executed, a second one that depends on it is not executed again, and a third one is.

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
# This fault has no price in points. From the output alone nobody can tell which network reached the printed 42.3 %. We
# trained the network of the text as the text says, and it reached 42.8 +- 0.8 % (two seeds, [measured
# here](../benchmarks/results/2026-11-23-recipes.md)). So the 42.3 % can be of this network, but that is not proven.
#
# The remedy: restart the kernel and run all cells before you believe anything. Then the numbers beside the cells are 1,
# 2, 3, ..., as they are on this page; a test of this project checks that. And compare what a page prints about a
# network with what its text says:

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
# What was measured: the rate costs most. At a twentieth of the right rate the check gets {score cifar10_overfit: rate
# 20 times lower} % in its 100 steps, not 100 %, and the training loses {costs: rate 20 times lower} of the {score:
# right} points that the right network has. At the right rate the check passes with each other fault; only for inputs
# between 0 and 1 one seed of five misses one image of 64. The prices of such inputs and of starting from weights that
# know a batch by heart are {verdict: not normalised; from weights that know a batch}. A decay of 0.05 that is added to
# the gradient is {verdict cifar10_overfit: decay added to the gradient} for the check and costs {costs: decay added to
# the gradient} points in training. The notebook's own 0.0001 is in its check alone, and its price by itself was not
# measured.
#
# All faults together, as the notebook trains, cost {costs: all, as in the original} points, less than the low rate
# alone. Our explanation, which was not measured: the notebook's training has no decay, and its rate stays at the peak,
# so on average it is about twice as high as that of a schedule with the same peak.
#
# How we read it: the check did its work. It failed, and it was right to fail: with this rate the network learns too
# little in 100 steps. The fault was to train on without mending it. But a check that passes says less than one might
# think: with the decay that ruins the training, the check still passes. That no price of starting from weights that
# know a batch could be shown is no reason to start from them: the result is then of two trainings, and the notebook
# describes one.

# %% [markdown]
# ## What the corrected network looks at
#
# This is the run that was trained at the top of this page. For some test images, the pictures show what the class token
# looks at in the last block, in each of the four heads, over the sixteen patches:

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
# Left: an image cut into its sixteen patches of 8 x 8 pixels. Middle: 24 of the filters; each of them makes one number
# of a token from the pixels of a patch. Right: how similar every two positions are (cosine); each small square compares
# one place with all sixteen.

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
# `convert` is the command of this project that carries weights from one library to another. The original is a network
# of torchvision, which `convert` reads and writes. Here is a file with its names, of the original's sizes, with random
# weights.
#
# {verify}
#
# torchvision, where it is installed, builds the original network, too: `A in torchvision` in the lines below. So the
# verdict is that both files are the same function.

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
# The network that was trained above can be written for torchvision or timm, too. After training, `vit_jax` fits one
# number, the temperature, and divides the logits by it before they become probabilities (see *calibration* in the
# glossary). Other libraries have no such number, so it goes into the weights of the head:

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
# {exercises}
#
# 1. What is the loss of a network that gives all ten classes the same probability?
# 2. Write the scaling of pixels 0..255 (uint8) to -1..1.
# 3. Write the accuracy of logits `[n, K]` and labels `[n]`.
#
# Then change the experiment. In the cell that defines `train` and `test`, write `RATE, DECAY = 1e-3, 0.05` instead of
# `RATE, DECAY = 2e-3, 0.05`, and run this cell and those below it: all variants are trained again, at half the rate.
# Does the check still pass?
#
# {help}

# %%
answer_1 = None  # a number


def my_normalise(images):
    return None  # your answer


def my_accuracy(logits, labels):
    return None  # your answer


# %%
check_answers("cifar10_overfit_and_train", answer_1, my_normalise, my_accuracy)
