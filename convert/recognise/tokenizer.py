"""The special ids of a run's tokenizer, under the names of Hugging Face's config.json."""

from __future__ import annotations

from vit_jax.config.outputs import FOLDER, SIDES
from vit_jax.errors import UserError
from vit_jax.files import strict_json

from ..containers.source import Source
from ..layout import Json

NAMES = {
    **{"pad": "pad_token_id", "end": "eos_token_id"},
    **{"begin": "decoder_start_token_id", "forced_end": "forced_eos_token_id"},
}


def special_ids(source: Source) -> Json:
    """The ids of special tokens by the ids.json that a run keeps with its tokenizer. Facts {name: id}, with what only
    generation needs under `generation`; empty where there is no such file.
    """
    content = source.beside().get(f"{FOLDER}/ids.json")
    if content is None:
        return {}
    try:
        ids = strict_json.parse(content)[SIDES[1]]
        out = {theirs: ids[ours] for ours, theirs in NAMES.items() if ids.get(ours) is not None}
        words = {"bad_words_ids": [[i] for i in ids["banned"]]} if ids["banned"] else {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(source.path, f"{FOLDER}/ids.json does not hold the ids of the target", "restore it") from error
    begin = {"forced_bos_token_id": ids["forced_begin"]} if ids.get("forced_begin") is not None else {}
    return {**out, **({"generation": words | begin} if words | begin else {})}
