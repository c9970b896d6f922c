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
# # Captions of pictures, corrected and measured
#
# In a course (CS231n), students write a captioner: two layers of a Transformer's decoder, 256 wide, that say what is in
# a picture. All that the decoder gets of a picture is one vector of 512 numbers, which another network has computed.
# The course trains it until it knows fifty captions of photographs by heart, and measures nothing else: nobody knows
# how well it describes a new picture. A teaching notebook, from which this page starts, imports the network of the
# course and does not train it.
#
# Here the faults of the course's captioner, and some of other courses, are shown in a few lines of code that were
# written for this page, with **what each costs**: networks that differ in this one thing, 64 wide, learn to describe
# drawn scenes, with the same three seeds, the same batches in the same order and as many steps, and are asked for
# scenes that they have not seen. Then the corrected network is trained by `vit_jax`, and we see which patches it looks
# at while it writes.
#
# {about}
#
# All variants together take {minutes} minutes of one core. To train the corrected network for as long as its preset
# says, write `FULL = True` in the next cell, or start Jupyter by `FULL=1 jupyter lab`.

# %%
import functools
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
from race import Budget, Variant, race
from safetensors.numpy import save_file

import vit_jax

FULL = os.environ.get("FULL", "") == "1"
os.chdir(tempfile.mkdtemp())  # for the files that are written below

# %% [markdown]
# ## The scenes
#
# A scene has one or two coloured shapes on a grey background, side by side or one above the other. (The preset
# `shapes`, a named set of settings, always has two; `python -m vit_jax.train shapes --help` says more.) On this page a
# scene with two shapes has two captions, which say the same in two orders, and a scene with one shape has its only
# caption twice.

# %%
SIZES = {"small": 0.14, "big": 0.22}
COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.7, 0.1), "blue": (0.1, 0.2, 0.9), "yellow": (0.9, 0.9, 0.1)}
FORMS = ("circle", "square", "triangle")
WORDS = ("<pad>", "<begin>", "<end>", "a", *SIZES, *COLOURS, *FORMS, "left", "right", "of", "above", "below")
PIXELS = (np.arange(32) + 0.5) / 32


def scene(draw, objects):
    beside, across = draw.integers(2), draw.uniform(0.44, 0.56)
    image, said = np.full((32, 32, 3), draw.uniform(0.4, 0.6)), []
    for k in range(objects):
        size, colour, form = (list(kind)[draw.integers(len(kind))] for kind in (SIZES, COLOURS, FORMS))
        r = SIZES[size]
        along = draw.uniform(r, 0.5 - r) + k / 2
        x, y = (along, across) if beside else (across, along)
        right, down = np.meshgrid(PIXELS - x, PIXELS - y)
        square = np.maximum(abs(right), abs(down)) <= r
        triangle = square & (2 * abs(right) <= down + r)
        image[{"circle": right**2 + down**2 <= r**2, "square": square, "triangle": triangle}[form]] = COLOURS[colour]
        said.append(f"a {size} {colour} {form}")
    image = (255 * (image + draw.normal(0, 0.03, image.shape)).clip(0, 1)).astype(np.uint8)
    there, back = (" left of ", " right of ") if beside else (" above ", " below ")
    return image, there.join(said), back.join(reversed(said))


def scenes(n, seed):
    draw = np.random.default_rng(seed)
    images, *captions = zip(*(scene(draw, 1 + i % 2) for i in range(n)), strict=True)
    ids = np.zeros((2, n, 12), np.int32)
    for some, rows in zip(captions, ids, strict=True):
        for caption, row in zip(some, rows, strict=True):
            words = ["<begin>", *caption.split(), "<end>"]
            row[: len(words)] = [WORDS.index(word) for word in words]
    return {"image": np.stack(images), "target": ids[0], "other": ids[1], "number": np.arange(n)}


def text(ids):
    return " ".join(WORDS[i] for i in ids if i > 2)


train, test = scenes(20_000, 0), scenes(500, 1)
some = {name: x[:4] for name, x in train.items()}

fig, axes = plt.subplots(1, 4, figsize=(11, 3.4))
for ax, image, target in zip(axes, some["image"], some["target"], strict=True):
    ax.imshow(image)
    ax.set(xticks=np.arange(7.5, 31, 8), yticks=np.arange(7.5, 31, 8))
    ax.set_xlabel(text(target).replace(" left", "\nleft").replace(" above", "\nabove"))
    ax.tick_params(length=0, labelbottom=False, labelleft=False)
    ax.grid(color="white", linewidth=0.5)  # its sixteen patches
fig.tight_layout()

# %% [markdown]
# ## The network, and three scores
#
# The network is that of the preset `shapes`: a ViT makes a token of each of sixteen patches, and the decoder attends to
# all of them. There are three scores:
#
# - *exact*: the share of new scenes whose caption is right to the last word. After each word the network goes on from
#   its own words, not from the right ones.
# - *one of two*: the same, where either of the two captions of a scene is right.
# - *on the fifty*: the same as *exact*, on fifty scenes from training; this is all that the course shows.
#
# The variants are trained by a short loop, which is in `race.py`; a `Variant` says how a network is built, how it sees
# a batch, and what its loss is. In training a batch has a number `"epoch"`, and in a test it has none: that is how the
# functions below can tell the two apart.

# %%
original = vit_jax.preset("shapes").run.model
config = replace(original, text=replace(original.text, target_vocabulary=len(WORDS), outputs=len(WORDS)))


def network(seed, config=config):
    return vit_jax.Captioner(config, rngs=nnx.Rngs(seed))


def see(batch):
    return batch["image"].astype(jnp.float32) / 127.5 - 1


def forward(net, batch):
    return net(see(batch), batch["target"][:, :-1])


def token_losses(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["target"][:, 1:])


def real(batch):
    return batch["target"][:, 1:] != 0


def cross_entropy(logits, batch):
    return (token_losses(logits, batch) * real(batch)).sum() / real(batch).sum()


def written(predict, batch):
    def write(t, target):
        return target.at[:, t + 1].set(predict({**batch, "target": target, "t": t})[:, t].argmax(-1))

    begun = jnp.zeros_like(batch["target"]).at[:, 0].set(1)
    return jax.lax.fori_loop(0, begun.shape[1] - 1, write, begun)


def score(predict, test):
    def right(said, captions):
        return ((said == captions) | (captions == 0)).all(1)

    said, of_fifty = written(predict, test), written(predict, few)
    return {
        "exact": right(said, test["target"]).mean(),
        "one of two": (right(said, test["target"]) | right(said, test["other"])).mean(),
        "on the fifty": right(of_fifty, few["target"]).mean(),
    }


few = {name: jnp.asarray(x[:50]) for name, x in train.items()}
right = Variant(network, forward, cross_entropy)

# %% [markdown]
# ## Fault 1: a picture is one vector
#
# In the decoder each word attends to the tokens of the picture (PyTorch calls them the *memory*). In the course this is
# one token, so there is nothing to choose: its weight is 1 whatever query and key say, and neither of the two ever gets
# a gradient. The network still computes and saves these two layers, which do nothing. And everything about the picture
# must fit into this one vector, which is the same for every word. On this page the one vector is the mean of the
# sixteen tokens. (A gradient of 1e-9 is what rounding leaves of zero.)


# %%
class OneVector(vit_jax.Captioner):
    def encode(self, *inputs, **rest):
        return super().encode(*inputs, **rest).mean(1, keepdims=True)


def one_vector(seed):
    return OneVector(config, rngs=nnx.Rngs(seed))


CROSS = "decoder.cross_attention"
for name, net in (("sixteen patches", network(0)), ("one vector", one_vector(0))):
    weights = net.capture(see(some), some["target"][:, :-1], [CROSS])[CROSS]
    gradient = nnx.grad(lambda net: cross_entropy(forward(net, some), some))(net)
    part = gradient["decoder"]["blocks"][0]["cross_attention"]
    sizes = [f"{name} {abs(part[name]['kernel'][...]).max():.0e}" for name in ("query", "key", "value")]
    print(f"{name}: weights {weights.min():.2f} to {weights.max():.2f}; largest gradient of", ", ".join(sizes))

vector = replace(right, network=one_vector)

# %% [markdown]
# ## Fault 2: it is judged on what it has learned by heart
#
# The course's network sees fifty pictures again and again, and the captions that are shown as its success are of these
# fifty. To learn a few examples by heart is a good test that nothing is broken; it measures nothing else.


# %%
def fifty_again(batch):
    return {name: x[batch["number"] % 50] for name, x in few.items()}


fifty = replace(
    right,
    forward=lambda net, batch: forward(net, fifty_again(batch) if "epoch" in batch else batch),  # only in training
    loss=lambda logits, batch: cross_entropy(logits, fifty_again(batch)),
)

# %% [markdown]
# ## Fault 3: a picture has several right captions, and one counts
#
# The course's photographs are of COCO, a data set in which five people have described each photograph, each in other
# words. A network that has learned from all five cannot know which of them it will be compared with. And if two of the
# fifty captions belong to one picture, no network can say both by heart when it is asked with this picture.
#
# Here a scene changes its caption from epoch to epoch: half of the scenes begin with the first caption, the others with
# the second. (The training has 1.6 epochs, so 60 of 100 scenes are seen with both.)


# %%
def in_turn(batch):
    other = (batch["number"] // 2 + batch["epoch"]) % 2 == 1  # a scene of two has an odd number
    return {**batch, "target": jnp.where(other[:, None], batch["other"], batch["target"])}


print(text(some["target"][1]), "=", text(some["other"][1]))

several = replace(
    right,
    forward=lambda net, batch: forward(net, in_turn(batch) if "epoch" in batch else batch),
    loss=lambda logits, batch: cross_entropy(logits, in_turn(batch)),
)

# %% [markdown]
# ## Fault 4: padding in the loss
#
# Captions are filled up to one length. The course leaves padding out of the sum of the losses but counts it in the
# number that the sum is divided by, so the loss depends on how much padding there is. A simpler slip is measured, too:
# the padding is learned like words.

# %%
for length in (12, 30):
    padded = {"target": np.pad(some["target"], ((0, 0), (0, length - 12)))}
    knows_nothing = jnp.zeros((4, length - 1, len(WORDS)))
    divided = (token_losses(knows_nothing, padded) * real(padded)).mean()
    print(f"filled up to {length}: loss {divided:.2f}, by real words {cross_entropy(knows_nothing, padded):.2f}")

divisor = replace(right, loss=lambda logits, batch: (token_losses(logits, batch) * real(batch)).mean())
like_words = replace(right, loss=lambda logits, batch: token_losses(logits, batch).mean())

# %% [markdown]
# ## Fault 5: dropout that is never off
#
# Dropout belongs to training. In the course it stays on when captions are written, unless the caller remembers to
# switch it off; a widely read example of translation (by another author) leaves it on in every call. Then the same
# picture, asked twice, gives two answers. Here a network with dropout of 0.1 in four places of the decoder is compared
# with the same one that switches it off.

# %%
tenth = {f"{place}dropout": 0.1 for place in ("", "attention_", "activation_", "embedding_")}
with_dropout = replace(config, text=replace(config.text, **tenth))


def noisy(net, batch):
    key = jax.random.fold_in(jax.random.key(batch.get("epoch", 0)), batch.get("t", 0))
    return net(see(batch), batch["target"][:, :-1], keys=jax.vmap(jax.random.fold_in, (None, 0))(key, batch["number"]))


net = network(0, with_dropout)
for name, call in (("off", forward), ("on", noisy)):
    first, second = (call(net, {**some, "t": t}) for t in (0, 1))
    print(f"dropout {name}: asked twice, the logits differ by up to {abs(first - second).max():.2f}")

switched = replace(
    right,
    network=lambda seed: network(seed, with_dropout),
    forward=lambda net, batch: noisy(net, batch) if "epoch" in batch else forward(net, batch),
)
never_off = replace(switched, forward=noisy)

# %% [markdown]
# ## Fault 6: another GELU than the one that it learned with
#
# There are two functions of that name: the exact one, by the error function, and an approximation by tanh. No file of
# weights says which of the two it was trained with, and it happens that one is used with weights that were trained with
# the other. (In the code, `graph_of` is called once outside of `jax.jit`, so that what it keeps is not of a
# compilation.)

# %%
x = jnp.linspace(-5, 5, 10_001)
print(f"largest difference: {abs(jax.nn.gelu(x, approximate=False) - jax.nn.gelu(x)).max():.1e}")

approximate = replace(
    config, vit=replace(config.vit, activation="gelu_tanh"), text=replace(config.text, activation="gelu_tanh")
)


@functools.cache
def graph_of(config):
    return nnx.split(network(0, config), nnx.Param)[0]


def as_tanh(net):
    return nnx.merge(graph_of(approximate), nnx.state(net, nnx.Param))  # the same weights


graph_of(approximate)  # outside jit


swapped = replace(right, forward=lambda net, batch: forward(net if "epoch" in batch else as_tanh(net), batch))

# %% [markdown]
# ## No fault: no padding mask in the decoder, and norms after the sums
#
# The example of translation of fault 5 also builds a padding mask and never applies it. [Another
# page](encoder_decoder.ipynb) measures that for the words that an encoder reads. For captions a padding mask makes no
# difference: padding stands at the end, where the causal mask hides it from every real word.

# %%
for name, padding in (("with", {"target_padding": some["target"][:, :-1] != 0}), ("without", {})):
    logits = network(0)(see(some), some["target"][:, :-1], **padding)
    print(f"{name} a padding mask: loss {cross_entropy(logits, some):.6f}")

# %% [markdown]
# The course's norms come after each sum, as in Vaswani et al. (2017), and there is none at the end. Such a network is
# harder to train when it is deep; here it has two layers, as in the course.

# %%
norms_last = replace(config, text=replace(config.text, norm_first=False, final_norm=False))
post_norm = replace(right, network=lambda seed: network(seed, norms_last))

# %% [markdown]
# ## Smaller slips
#
# These have no price here:
#
# - The loop that writes a caption does not stop at its end. It fills all places, and for each of them it computes all
#   earlier places again; what follows the end is cut off when the caption is printed.
# - Batches are drawn with replacement, so no epoch sees every caption.
# - The function that draws all initial weights is called too early. The last layer does not exist yet and keeps
#   PyTorch's own, and the vector of the padding, which was zero, is overwritten.

# %% [markdown]
# ## What each costs
#
# {prices}
#
# Here there are three seeds and a table for each of the three scores. *Dropout that is never off* is compared with the
# row above it, and the others with the first.

# %%
variants = {
    "right": right,
    "one vector as memory": vector,
    "fifty pictures": fifty,
    "two captions a scene": several,
    "padding in the divisor": divisor,
    "padding in the loss": like_words,
    "right, with dropout": switched,
    "dropout that is never off": never_off,
    "tanh GELU when asked": swapped,
    "norms after the sums": post_norm,
}
budget = Budget(steps=500, batch=64, rate=3e-3, seeds=3)
against = {"dropout that is never off": "right, with dropout"}
found = race("captioning", variants, train, test, score, budget, against)
Markdown(found.markdown("exact", "one of two", "on the fifty"))

# %% [markdown]
# ## How to read it
#
# What was measured: the network that learned fifty scenes by heart describes {score: fifty pictures| on the fifty} % of
# these correctly, and {score: fifty pictures} % of new ones; on new scenes this costs {costs: fifty pictures} points.
# One vector instead of sixteen costs {costs: one vector as memory} points, though the ViT learns together with the
# decoder what to put into it. With two captions a scene the network has learned less in the same steps: this costs
# {costs: two captions a scene| one of two} points where either caption is right, and {costs: two captions a scene}
# where only the first one is. Dropout that is never off costs {costs: dropout that is never off} points. (With dropout
# the right network has {score: right, with dropout} %, without it {score: right} %.)
#
# Padding in the divisor or in the loss, and norms after the sums, are {verdict: padding in the divisor; padding in the
# loss; norms after the sums}. The other GELU is {verdict: tanh GELU when asked}: not a single score has changed.
#
# How we read it: with padding in the divisor the loss and its gradient are smaller (above: 1.97 instead of 2.89). Adam
# divides a gradient by its own size, so a smaller loss trains the same way; with SGD, or with a limit on the size of
# gradients, it would not. The padding itself is easy to learn, because after the end of a caption always the same
# follows. Two right orders are two things to learn; and a network that must choose between them at the first word needs
# to remember, at every later word, which one it began with. One vector of 64 numbers has enough room for the names of
# two shapes. Its weakness may be that every word gets the same numbers and cannot look at another place.

# %% [markdown]
# ## The corrected network, trained
#
# This is the preset, on fewer scenes than its 60,000, and for three epochs instead of five. All its scenes have two
# shapes and one right caption. Three more sets of scenes test whether it uses the picture:
#
# - *unseen* has pairs of colour and shape that training never showed;
# - *shuffled* has the captions of test, each with the picture of another one;
# - *blank* has the captions of test, each with a grey picture. A network that got these or the shuffled ones right
#   would not have looked at the picture.
#
# *Attention in box* is a share of the attention at the word that names a shape: the share that lies on the patches of
# this shape. *Of a uniform map* is the same share if all patches got equal attention, so it should be much smaller. The
# figures of the last line of the output are pictures, which are shown below it.

# %%
fields = {} if FULL else {"data.drawn": 24_000, "epochs": 3}
summary = vit_jax.train(vit_jax.preset("shapes", fields=fields).run, preset="shapes")

# %% [markdown]
# It describes new scenes almost without an error. But of the scenes with a red triangle or a blue circle it gets next
# to none right, although it knows both words: it has learned the pairs that it was shown. Without the right picture it
# gets none right.
#
# The picture below shows where it looks while it writes, on two scenes of this page: for each word, the patches that it
# attends to are bright (mean over the heads of the last layer).

# %%
net = vit_jax.load(summary["folder"])
fig, axes = plt.subplots(2, 12, figsize=(13, 3))
for row, image in zip(axes, test["image"][1:4:2], strict=True):
    words, maps = net.attention(image)  # maps: [layers, heads, words, rows, columns]
    row[0].imshow(image)
    for ax, word, weights in zip(row[1:], words, maps[-1].mean(0), strict=False):
        light = np.kron(weights / weights.max(), np.ones((8, 8)))[..., None]
        ax.imshow((image * (0.2 + 0.8 * light)).astype(np.uint8))
        ax.set_title(word, size=9)
for ax in axes.ravel():
    ax.set_axis_off()
fig.tight_layout()

# %% [markdown]
# Left: the first sixteen filters of 8 x 8 pixels that it has learned; each makes one number of a token from the pixels
# of a patch. Middle and right: how similar every two positions are (cosine), at the start, where they are random, and
# after training, in the order of reading.

# %%
filters = np.asarray(net.model.vit.patch.kernel[...]).reshape(8, 8, 3, -1)[..., :16]
filters = (filters - filters.min((0, 1, 2))) / np.ptp(filters, axis=(0, 1, 2))
fig, axes = plt.subplots(1, 3, figsize=(11, 3.6))
axes[0].imshow(filters.reshape(8, 8, 3, 4, 4).transpose(3, 0, 4, 1, 2).reshape(32, 32, 3))
positions = (network(0).vit.position[...], net.model.vit.position[...])
for ax, rows in zip(axes[1:], positions, strict=True):
    rows = np.asarray(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
    ax.imshow(rows @ rows.T, cmap="coolwarm", vmin=-1, vmax=1)
for ax, title, every in zip(
    axes, ("filters of the patches", "positions at the start", "positions, trained"), (8, 4, 4), strict=True
):
    ticks = np.arange(every, ax.get_xlim()[1], every) - 0.5
    ax.set(title=title, xticks=ticks, yticks=ticks)
    ax.tick_params(length=0, labelbottom=False, labelleft=False)
    ax.grid(color="white")
fig.tight_layout()

# %% [markdown]
# ## Weights of the original
#
# `convert` is the command of this project that carries weights from one library to another. It reads the state dict
# (the names and arrays that a PyTorch network saves) of the course's captioner, in the two forms that the course has
# had. No tensor says how many heads there are, so without that it stops and asks for it. (It also names mean and std,
# which are needed for files that read pixels; this one reads vectors.) Here is a file with the names of the original,
# of a small network with random weights.


# %%
def linear(name, n_out, n_in):
    return {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}


shapes = {"embedding.weight": (17, 32), "positional_encoding.pe": (1, 12, 32)}
shapes |= linear("visual_projection", 32, 20) | linear("output", 17, 32)
for layer in ("transformer.layers.0", "transformer.layers.1"):
    shapes |= linear(f"{layer}.linear1", 64, 32) | linear(f"{layer}.linear2", 32, 64)
    for attention in ("self_attn", "multihead_attn"):
        for part in ("query", "key", "value", "proj"):
            shapes |= linear(f"{layer}.{attention}.{part}", 32, 32)
    shapes |= {f"{layer}.norm{i}.{leaf}": (32,) for i in (1, 2, 3) for leaf in ("weight", "bias")}
draw = np.random.default_rng(0)
save_file(
    {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}, "original.safetensors"
)

command = "convert original.safetensors ours.safetensors --to vit-jax --verify"
print(subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True).stderr)

# %% [markdown]
# Now with the number of heads.
#
# {verify}
#
# {unproven}

# %%
command += " --set text.heads=2"
print(subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True).stdout)
moved = vit_jax.load("ours.safetensors")
print(moved.model(jnp.ones((4, 1, 20)), jnp.ones((4, 5), jnp.int32)).shape)

# %% [markdown]
# ## Exercises
#
# {exercises}
#
# 1. What is the loss of a network that gives all of 1,000 words the same probability?
# 2. Write the mean of losses `[B, T]` over the real tokens alone; real is bool `[B, T]`.
# 3. Write the share of captions that are correct to the last word. The arrays `said` and `right` are ids `[B, T]`;
#    where `right` is 0 (padding), any id counts as correct.
#
# Then change the experiment. In the cell of the tables, write `Budget(steps=1000, ...` instead of `Budget(steps=500,
# ...`, and run this cell and the next: all variants are trained again, for twice as long. Does one vector catch up?
#
# {help}

# %%
answer_1 = None  # a number


def my_mean_of_words(losses, real):
    return None  # your answer


def my_exact(said, right):
    return None  # your answer


# %%
check_answers("captioning", answer_1, my_mean_of_words, my_exact)
