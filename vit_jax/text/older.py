"""The names of the files that hold the vocabulary of a tokenizer where there is no tokenizer.json."""

MERGED, WORD_PIECES = ("vocab.json", "merges.txt"), ("vocab.txt",)
FAIRSEQ, SPIECE = ("sentencepiece.bpe.model",), ("spiece.model",)
OLDER = (
    MERGED[-1],
    *WORD_PIECES,
    *FAIRSEQ,
    *SPIECE,
    "tokenizer.model",
)  # by which a folder has one; vocab.json may be of anything
OF_BYTES = "ByT5Tokenizer"  # a class whose tokens are bytes, so that a folder only states its name
