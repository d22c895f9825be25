"""One token for each word of the vocabulary, and one for all words outside it."""

from tpu_ui.demo.vocabulary import words

TEXT_TOKENS = 32
SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|unknown|>", "<|pad|>")
BOS_ID, EOS_ID, UNKNOWN_ID, PAD_ID = 4, 5, 6, 7
"""Not 2: transformers reads an end token of 2 as a sign of an old configuration and looks for the largest id."""


def vocabulary_ids() -> dict[str, int]:
    """Token ids by word. Ids 0 to 3 are reserved and never produced."""
    reserved = [f"<|reserved{i}|>" for i in range(4)]
    return {word: i for i, word in enumerate([*reserved, *SPECIAL, *words()])}


def new_tokenizer():
    """The tokenizer as transformers' PreTrainedTokenizerFast: lower case, letters and commas only, cut at 32 tokens."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    bos, eos, unknown, pad = SPECIAL
    backend = Tokenizer(models.WordLevel(vocabulary_ids(), unk_token=unknown))
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(",", " , "),
            normalizers.Replace(Regex(r"[^\p{L}\p{N},]+"), " "),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}", pair=None, special_tokens=[(bos, BOS_ID), (eos, EOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=TEXT_TOKENS,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown,
        pad_token=pad,
        padding_side="right",
        truncation_side="right",
    )
