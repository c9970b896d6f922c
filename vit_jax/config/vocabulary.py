"""What the ids of a run's sentences are called in its config, its files and its metadata."""

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0 to 3 of an open vocabulary; a closed one has no <unk>
SIDES = ("source", "target")
WORDS, TRAINED = "words", ("bpe", "unigram")  # values of data.tokenizer that are no folder
APART = "words-apart"  # data.tokenizer of a run whose words end before combining marks, while its data is opened
FOLDER = "tokenizer"  # of a run, for the files of its tokenizer
