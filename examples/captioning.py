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
# In a course, students write a captioner: two layers of a Transformer's decoder, 256 wide, that say what is in a
# picture. All that the decoder gets of a picture is one vector of 512 numbers, which another network has computed. It
# learns fifty captions of photographs by heart, and nothing else is measured: nobody knows how well it describes a new
# picture. The teaching notebook that we start from imports this network and never trains it.
#
# Here its faults, and some that other courses have, are shown in a few lines of code that were written for this page,
# with **what each costs**: networks that differ in this one thing learn to describe drawn scenes, with the same three
# seeds, the same batches in the same order and as many steps, and are asked for scenes that they have not seen. Then
# the corrected network is trained by `vit_jax`, and we see which patches it looks at while it writes.
#
# The figures are shipped in `prices/`. If you change a number, a line of code or an image, the variants that this
# concerns are trained on your machine and kept in `prices/own/`; all of them take {minutes} minutes of one core. For
# each variant a line says which figures it shows. `FULL=1` trains the corrected network for as long as its preset says.

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
# A scene has one or two coloured shapes on a grey background, side by side or one above the other. (The preset `shapes`
# always has two; `python -m vit_jax.train shapes --help` says more.) On this page a scene with two shapes has two
# captions, which say the same in two orders, and a scene with one shape has its only caption twice.

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
# The network of the preset `shapes`: a ViT makes a token of each of sixteen patches, and the decoder attends to all of
# them. *Exact* is the share of new scenes whose caption is right to the last word; after each word the network goes on
# from its own words, not from the right ones. *One of two* counts both captions of a scene as right. *On the fifty* is
# *exact* on fifty scenes from training, which is all that the course shows.

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
# Attention chooses among the tokens of its memory. Here the memory is one token, so there is nothing to choose: the
# weight is 1 whatever query and key say, and neither of the two ever gets a gradient. The network still computes and
# saves these maps, which do nothing. And everything about the picture must fit into the one vector, which is the same
# for every word. Here it is the mean of the sixteen tokens. (A gradient of 1e-9 is what rounding leaves of zero.)


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
# It sees fifty pictures again and again, and the captions that are shown as its success are of these fifty. To learn a
# few examples by heart is a good test that nothing is broken; it measures nothing else.


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
# Five people have described each photograph of COCO, each in other words. A network that has learned from all of them
# cannot know which of the five it will be compared with; and where two of the fifty captions describe one picture, no
# network can know both by heart. Here each scene is learned with its first caption in even epochs and with the other
# one in odd ones, or the other way round.


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
# number that the sum is divided by, so the loss depends on how much padding there is. A simpler slip is measured too:
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
# switch it off; a well-known example of translation leaves it on in every call. Then the same picture, asked twice,
# gives two answers. Here a network with dropout of 0.1 in four places of the decoder is compared with the same one that
# switches it off.

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
# weights says which of the two it was trained with, and well-known examples use one of them with weights that were
# trained with the other.

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
# The translation example also builds a padding mask and never applies it. For a source of words that matters, and so
# does the causal mask: both are measured on [another page](encoder_decoder.ipynb). For captions a padding mask has
# nothing to do. Padding stands at the end, where the causal mask hides it from every real word:

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
# These have no price here. The loop that writes a caption does not stop at its end: it fills all places, computes every
# earlier place again for each of them, and the printing cuts off what follows the end. Batches are drawn with
# replacement, so no epoch sees every caption. And the function that draws all initial weights is called too early: the
# last layer does not exist yet and keeps PyTorch's own, and the embedding of the padding, which was zero, is
# overwritten.

# %% [markdown]
# ## What each costs
#
# A price is the mean difference to the right network with the same seed, in points, with its 95 % interval (Student's
# t, three seeds). The last column says *costs* or *gains* where the interval does not contain zero. Where it does, it
# says *next to nothing* if the interval stays within one point of zero, and else *unclear*: these seeds are too few to
# tell.

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
# these correctly, and {score: fifty pictures} % of new ones. One vector instead of sixteen costs {price: one vector as
# memory} points, though the ViT learns together with the decoder what to put into it. With two captions a scene it has
# learned less in the same steps: {price: two captions a scene| one of two} points less where both captions count,
# {price: two captions a scene} where only the first one does. Dropout that is never off costs {price: dropout that is
# never off} points. (With dropout the right network has {score: right, with dropout} %, without it {score: right} %.)
#
# For padding in the divisor or in the loss, and for norms after the sums, the table says *unclear*. With the other GELU
# not a single score has changed.
#
# How we read it: Adam divides a gradient by its own size, so half the loss trains the same way; with SGD, or with a
# bound on the gradient, it would not. To learn the padding is easy, since nothing else follows the end of a caption.
# Two right orders are two things to learn; and a network that must choose between them at the first word needs to
# remember, at every later word, which one it began with. One vector of 64 numbers has enough room to name two shapes.
# What it lacks may be that every word is given the same numbers.

# %% [markdown]
# ## The corrected network, trained
#
# This is the preset, on fewer scenes than its 60,000, and for three epochs instead of five. All its scenes have two
# shapes and one right caption. It is also tested on scenes that show whether it looks: *unseen* has pairs of colour and
# shape that training never showed; *shuffled* has the captions of test, each with the picture of another one, and
# *blank* with a grey picture: a network that gets these right has not looked at the picture. Its *attention in box* is
# the share of the attention, at the word that names a shape, that lies on the patches which that shape touches.

# %%
fields = {} if FULL else {"data.drawn": 24_000, "epochs": 3}
summary = vit_jax.train(vit_jax.preset("shapes", fields=fields).run, preset="shapes")

# %% [markdown]
# It describes new scenes almost without an error. But of the scenes with a red triangle or a blue circle it gets next
# to none right, although it knows both words: it has learned the pairs that it was shown. Without the picture it gets
# none right.
#
# Where it looks while it writes, on two scenes of this page: for each word, the patches that it attends to are bright
# (mean over the heads of the last layer).

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
# The first sixteen filters of 8 x 8 pixels that it has learned, by which it reads a patch. And its positions, which
# start at random: how similar each is to each other (cosine), at the start and after training, in the order of reading.

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
# `convert` reads the state dict of the course's captioner, in both forms in which it was handed out. No tensor says how
# many heads there are, so it asks. Here is a file with the names of the original, of a small network with random
# weights.


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
# Now with the number of heads, and with `--verify`: it computes both files as functions, compares them, and keeps the
# result as a certificate beside the file:

# %%
command += " --set text.heads=2"
print(subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True).stdout)
moved = vit_jax.load("ours.safetensors")
print(moved.model(jnp.ones((4, 1, 20)), jnp.ones((4, 5), jnp.int32)).shape)

# %% [markdown]
# ## Exercises
#
# Fill in your answers and run both cells: the second one says what is right. Then change the experiment: another depth,
# loss or budget in a cell above, and run the cells from there on. The table shows your figures.
#
# 1. What is the loss of a network that gives all 18 words the same probability?
# 2. Write the mean of losses `[B, T]` over the real tokens alone; real is bool `[B, T]`.
# 3. Write the share of captions that are right to the last word: ids `[B, T]` both, and what stands where right is 0
#    (padding) does not count.
#
# Words that are new to you are in the [glossary](../docs/glossary.md). If a network of yours does not learn, [this
# page](../docs/learning.md) helps.

# %%
answer_1 = None  # a number


def my_mean_of_words(losses, real):
    return None  # your answer


def my_exact(said, right):
    return None  # your answer


# %%
check_answers("captioning", answer_1, my_mean_of_words, my_exact)
