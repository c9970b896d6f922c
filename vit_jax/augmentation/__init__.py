"""Training images on the device, a whole batch at a time: crops, flips, policies, erasing, mixing; normalisation.

`batch.augment` and `mixing.mixed` are called by a task's `prepare`, once on the whole batch. Each example has its own
PRNG key (a mixed pair has one), so the draws do not depend on how a batch is cut; every draw states its dtype, so they
do not depend on jax_enable_x64.

    batch.py       all that happens to images one by one, in order; normalisation
    crops.py       where an image is cut out, flipped and erased
    primitives.py  an affine map, a blend with a degenerate image, a table of 256 levels
    operations.py  the operations of policies as cases of these three
    policies.py    RandAugment, TrivialAugment, AutoAugment, 3-Augment as tables of operations
    mixing.py      mixup and CutMix
"""
