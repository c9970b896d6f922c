#!/bin/sh
# All figures that need a GPU, in one command; a Markdown table goes to benchmarks/results/DATE-gpu.md.
#
#   benchmarks/gpu.sh            on a GPU: hours, of which 256x24 takes most; what is done is not done again
#   TOY=1 benchmarks/gpu.sh      all of it in tiny on a CPU, in five minutes: whether it runs, no figures
#
# PYTHON        the interpreter with vit-jax and jax[cuda12] or jax[cuda13] (default: .venv/bin/python, else python3)
# TORCH_PYTHON  one with vit-jax, torch and timm, where those need other CUDA libraries (default: PYTHON)
# DATA          folder of prepared TFDS sets (default: that of vit-jax, which fetches CIFAR there)
# OUT           folder of runs, logs and the table (default: runs/gpu; with TOY=1 a temporary one)
# SEEDS         runs of each recipe (default: 1)
# ONLY          names of the rows to measure, with commas between them (default: all)
#
# Relative paths are from the folder of the repository.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
export PYTHON
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m benchmarks.gpu
