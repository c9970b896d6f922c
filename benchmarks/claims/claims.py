"""What teaching notebooks claim, each as comparisons of what the experiments measure."""

from __future__ import annotations

from .verdict import Claim, Comparison

_FEW, _ALL = "2,000 images", "50,000 images"

CLAIMS = (
    Claim(
        "A ViT learns less than a CNN from few images",
        "networks",
        tuple(Comparison(f"CNN, {n}", f"{vit}, {n}") for vit in ("ViT", "ViT on convolutions") for n in (_FEW, _ALL)),
    ),
    Claim(
        "On CIFAR-100 deeper is worse: 24 layers learn less than 6",
        "depth",
        (Comparison("6 layers", "24 layers"), Comparison("6 layers, trained longer", "24 layers")),
    ),
    Claim(
        "A ViT needs positions",
        "parts",
        tuple(
            Comparison(positions, "no positions")
            for positions in (
                "learned positions",
                "sinusoids of one dimension",
                "sinusoids of two dimensions",
                "rotary positions",
            )
        ),
    ),
    Claim(
        "Positions of two dimensions are better than those of one",
        "parts",
        (Comparison("sinusoids of two dimensions", "sinusoids of one dimension"),),
    ),
    Claim(
        "Learned positions are better than computed ones",
        "parts",
        tuple(
            Comparison("learned positions", other)
            for other in ("sinusoids of one dimension", "sinusoids of two dimensions", "rotary positions")
        ),
    ),
    Claim(
        "The class token is better than the mean of the patches",
        "parts",
        (Comparison("learned positions", "mean of the patches", "class token against mean of the patches"),),
    ),
    Claim(
        "More heads are better, at one width",
        "parts",
        (
            Comparison("2 heads", "1 head"),
            Comparison("learned positions", "2 heads", "4 heads against 2 heads"),
            Comparison("8 heads", "learned positions", "8 heads against 4 heads"),
            Comparison("8 heads", "1 head"),
        ),
    ),
    Claim(
        "Sinusoids go on to sequences longer than those that were learned",
        "length",
        tuple(
            comparison
            for task in ("copied", "backwards")
            for comparison in (
                Comparison(f"sinusoids, {task}, longer", f"learned positions, {task}, longer"),
                Comparison(
                    f"sinusoids, {task}, longer",
                    f"sinusoids, {task}: half of it",
                    f"sinusoids, {task}: longer strings against half of what the learned lengths give",
                ),
            )
        ),
    ),
    Claim(
        "The places of a sequence are computed side by side by attention, and one after the other by an LSTM",
        "steps",
        (
            Comparison(
                "LSTM: longest over shortest",
                "attention: longest over shortest",
                "time at 1,024 tokens over that at 16, equally many in all: LSTM against attention",
                "times",
            ),
            Comparison(
                "attention, 1024 tokens: two cores over one",
                "LSTM, 1024 tokens: two cores over one",
                "what a second core gives at 1,024 tokens: attention against LSTM",
                "times",
            ),
        ),
    ),
    Claim(
        "Distillation helps a ViT that is trained from scratch",
        "distillation",
        (
            Comparison(f"taught, {_FEW}", f"untaught, {_FEW}"),
            Comparison(f"taught, {_ALL}", f"untaught, {_ALL}"),
            Comparison(f"taught, {_ALL}", f"untaught, longer, {_ALL}"),
        ),
    ),
    Claim(
        "A tolerance of 0.05 on the logits finds a wrong GELU",
        "gelu",
        tuple(
            Comparison(
                f"{layers} layers, {name}: largest difference of logits",
                "a tolerance of 0.05",
                f"largest difference of logits, {layers} layers, {name} for erf, against 0.05",
                "of the logits",
            )
            for layers in (3, 12)
            for name in ("tanh", "sigmoid")
        ),
    ),
    Claim(
        "A wrong activation in a conversion costs accuracy",
        "gelu",
        tuple(
            Comparison(f"{layers} layers", f"{layers} layers, {name}", f"{layers} layers, erf against {name}")
            for layers in (3, 12)
            for name in ("tanh", "sigmoid", "ReLU")
        ),
    ),
)
