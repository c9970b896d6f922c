"""What other programs (timm, Hugging Face, torchvision, DeiT, nanoGPT, ...) call our flags and their values."""

from __future__ import annotations

# {their flag: our fields}; a command has some of the fields.
FLAGS: dict[str, tuple[str, ...]] = {
    their: tuple(ours.split())
    for ours, theirs in {
        "epochs": "epoch num-epochs n-epochs max-epochs num-train-epochs train-epochs",
        "max-steps": "steps num-steps max-iters iterations max-iter num-iterations train-steps total-steps",
        "batch": "batch-size bs b train-batch-size per-device-train-batch-size eval-batch-size mini-batch batchsize",
        "accumulate": "accum grad-accum accum-iter grad-accum-steps gradient-accumulation-steps accumulation-steps",
        "optim.name": "opt optimizer optim",
        "optim.lr": "lr learning-rate base-lr max-lr blr",
        "optim.weight-decay": "wd decay",
        "optim.schedule": "sched scheduler lr-scheduler lr-schedule lr-scheduler-type",
        "optim.warmup": "warmup-epochs lr-warmup-epochs",
        "optim.warmup-steps": "warmup-steps warmup-updates lr-warmup-steps num-warmup-steps",
        "optim.layer-decay": "layer-decay ld lr-layer-decay llrd",
        "optim.freeze": "freeze frozen",
        "tune": "freeze-backbone head-only attn-only",
        "tune probe": "linear-probe linprobe",
        "probe": "knn knn-eval nb-knn linear-eval lin-eval",
        "features": "dump-features extract-features feature-file",
        "blocks": "out-indices indices intermediate-layers out-features n-last-blocks",
        "optim.final": "min-lr lr-min",
        "optim.clip": "clip-grad grad-clip clip max-grad-norm clip-norm gradient-clip-val clip-grad-norm",
        "optim.beta1": "betas adam-beta1 opt-betas",
        "optim.beta2": "adam-beta2",
        "optim.eps": "opt-eps adam-epsilon",
        "loss.label-smoothing": "smoothing label-smooth label-smoothing-factor",
        "loss.alpha": "distillation-alpha distill-alpha",
        "loss.temperature": "distillation-tau distill-temperature tau",
        "loss.hard": "distillation-type hard-distillation",
        "teacher": "teacher-model teacher-path teacher-checkpoint",
        "ema-warmup": "model-ema-warmup use-ema-warmup",
        "ema": "model-ema ema-decay model-ema-decay use-ema",
        "patience": "early-stopping early-stop patience-epochs",
        "compute-dtype dtype": "amp precision bf16 mixed-precision amp-dtype float32 fp32",
        "compute-dtype": "dtype",
        "to": "format target output-format out-format target-layout layout",
        "from": "input-format source-format source-layout",
        "adapt": "resize",
        "data.threads": "workers num-workers j dataloader-num-workers threads",
        "data.source": "dataset data-set train-dir train-data data-path dataset-name data",
        "data.dir": "data-dir root data-root datadir",
        "data.labels": "labels label-column label-column-name label-col target-column targets-column",
        "data.file-column": "image-column image-column-name image-col path-col fn-col filename-col",
        "data.target": "problem-type target-type multi-label multilabel regression",
        "data.separator": "label-delim label-separator sep delimiter",
        "data.split-column": "split-col valid-col",
        "data.group": "group-column groups patient patient-column group-col",
        "data.validation": "val-split val validation-split valid-split",
        "data.interpolation": "interpolation train-interpolation",
        "model.image": "img-size image-size input-size imgsz resolution res crop-size img",
        "model.patch": "patch-size patch",
        "model.classes": "num-classes n-classes nb-classes classes num-labels",
        "model.channels": "in-chans in-channels num-channels channels",
        "model.width": "dim d-model hidden-size embed-dim n-embd emb width",
        "model.depth": "num-layers n-layers layers num-hidden-layers n-layer depth",
        "model.heads": "num-heads n-head nhead n-heads num-attention-heads heads",
        "model.hidden": "mlp-dim intermediate-size dim-feedforward d-ff ffn-dim",
        "model.dropout": "drop dropout drop-rate hidden-dropout-prob",
        "model.drop-path": "drop-path drop-path-rate stochastic-depth",
        "model.pool": "global-pool pooling",
        "loss.class-weights": "class-weights class-weight pos-weight weights-of-classes cls-weight",
        "loss.focal": "focal focal-gamma focal-loss fl-gamma",
        "loss.prior": "logit-adjustment logit-adjust prior balanced-softmax",
        "augment.flip": "hflip horizontal-flip",
        "augment.policy": "aa auto-augment autoaugment randaugment rand-aug trivial-augment three-augment",
        "augment.magnitude": "ra-magnitude ra-m",
        "augment.erase": "reprob random-erase random-erasing cutout",
        "augment.scale": "scale random-resized-crop rrc",
        "augment.ratio": "ratio",
        "augment.mixup": "mixup mixup-alpha",
        "augment.cutmix": "cutmix cutmix-alpha",
        "augment.repeats": "aug-repeats repeated-aug repeated-augmentation",
        "init": "pretrained initial-checkpoint finetune model-name-or-path from-pretrained",
        "resume": "resume-from resume-from-checkpoint auto-resume",
        "new-head": "reset-head ignore-mismatched-sizes reset-classifier",
        "dir": "out-dir output-dir save-dir log-dir logdir outdir checkpoint-dir workdir",
        "name": "run-name experiment exp-name exp run-id",
        "config": "config-file cfg conf yaml",
        "seed": "random-seed rng-seed manual-seed",
        "seeds": "num-seeds repeats n-runs",
        "folds": "k-folds n-folds num-folds cv kfold n-splits",
        "log-every": "log-interval print-freq log-freq logging-steps log-every-n-steps",
        "save-minutes": "save-freq save-every save-interval save-steps",
        "keep": "save-total-limit checkpoint-hist keep-last",
        "parallel": "strategy distributed ddp",
        "remat": "grad-checkpointing gradient-checkpointing activation-checkpointing checkpoint-activations recompute",
        "scan": "scan-layers scan-blocks",
        "attention-kernel": "flash-attention flash-attn flash fused-attn attn-implementation sdpa use-flash-attn",
        "wandb": "wandb-project log-wandb use-wandb",
        "tensorboard": "tb",
        "top": "topk top-k k num-predictions",
        "split": "set subset",
        "init weights": "weights checkpoint ckpt load",
        "out dir csv": "output out output-file",
        "csv": "results-file results",
        "beam": "beams num-beams beam-size beam-width",
        "nbest": "n-best num-return-sequences num-hypotheses",
        "length-penalty": "lenpen len-penalty",
        "no-repeat-ngram": "no-repeat-ngram-size",
        "max-length": "max-new-tokens max-len max-decoding-length",
        "min-length": "min-new-tokens min-len",
        "sample": "do-sample sampling",
        "force": "overwrite yes y f exist-ok",
    }.items()
    for their in theirs.split()
}

# {their flag: why there is none here, and what to do instead}
REASONS: dict[str, str] = {
    their: reason
    for reason, theirs in {
        "jax takes the devices that it finds; to choose, set JAX_PLATFORMS=cpu or CUDA_VISIBLE_DEVICES=0 "
        "before the command": "device devices gpu gpus cuda cpu tpu num-gpus no-cuda use-cuda accelerator",
        "float16 would need a scaled loss; use `compute_dtype bfloat16`": "fp16 half float16",
        "it is not here alone; `augment.policy three_augment` has it among others": "color-jitter gray-scale "
        "gaussian-blur solarization",
        "images are flipped left to right only, by `augment.flip`": "vflip vertical-flip",
        "the network is the first argument, such as vit-s16 or cifar10-48x4, and its sizes are the fields "
        "`model.FIELD`": "model arch architecture network model-name preset",
        "one process takes all devices of its machine, so leave it out": "local-rank world-size nproc-per-node "
        "num-processes dist-url rank",
        "a `split` is measured by the one text that greedy or beam search (`beam`) finds; several texts and draws are "
        "for python -m vit_jax.predict": "nbest sample temperature top-k top-p",
        "tables are CSV, also with --share, which pyarrow makes parquet (csv.read_csv, parquet.write_table)": "format",
        "a run is measured by python -m vit_jax.evaluate RUN": "eval evaluate test-only eval-only do-eval",
    }.items()
    for their in theirs.split()
}

# {their value: ours}
VALUES = {
    "bf16": "bfloat16", "amp": "bfloat16", "fp16": "bfloat16", "float16": "bfloat16", "half": "bfloat16",
    "fp32": "float32", "full": "float32", "fp64": "float64", "double": "float64",
    "cos": "cosine", "onecycle": "one_cycle", "noam": "inverse_sqrt", "none": "constant", "fixed": "constant",
    "adam_w": "adamw", "sgdm": "momentum", "nesterov": "momentum",
    "swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quickgelu": "quick_gelu",
    "gap": "mean", "avg": "mean", "token": "cls", "ddp": "pmap", "cubic": "bicubic", "linear": "bilinear",
    "val": "validation", "valid": "validation", "dev": "validation",
}  # fmt: skip
