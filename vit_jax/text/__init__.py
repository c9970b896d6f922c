"""Sentences as ids, and back.

Read ids (those with a meaning of their own) and tokenizer (the interface) first; then vocabulary (words), library
(packages that are imported when needed), pieces and sentence_pieces (tokenizers of Hugging Face), stated and folder
(their files), and record (the tokenizers of a run).
"""

from .ids import Ids
from .library import needed
from .record import digest, kept, kept_one, made, made_one, opened, opened_one
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary, closed, counted, words

__all__ = [
    "Ids",
    "Tokenizer",
    "Vocabulary",
    "closed",
    "counted",
    "digest",
    "kept",
    "kept_one",
    "made",
    "made_one",
    "needed",
    "opened",
    "opened_one",
    "words",
]
