"""Two tables: the sizes of published models, and the limits of a few cards.

Numbers of parameters are exact for the widths in the source, except that of
DeepSeek-V2, which is rounded to a billion and counts all experts.

Cards have the peaks of their data sheets, which no program reaches; we
measured none of them. The rate is that of fp32 without tensor cores. Memory is
sold in GB and made in GiB, so a "24 GB" card has 24 GiB, of which a driver
keeps a little.
"""

from dataclasses import dataclass

from . import formulas

GIB = 2**30


@dataclass(frozen=True)
class ModelConfig:
    """What the size of a model's cache depends on.

    num_kv_heads: of what is cached without a latent; latent_dim, rotary_dim:
    elements per token and block with multi-head latent attention; window:
    tokens that the attention of every block sees, None for all.
    """

    name: str
    num_params: int
    num_blks: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    source: str
    latent_dim: int | None = None
    rotary_dim: int = 0
    window: int | None = None

    def cache_bytes(self, n: int, batch: int = 1, itemsize: int = 2,
                    sinks: int = 0) -> int:
        """Bytes cached for `batch` sequences of n tokens.

        The model's own latent and window apply; sinks, itemsize and errors:
        see formulas.cache_bytes. n may exceed max_context.
        """
        rest = dict(n=n, batch=batch, itemsize=itemsize, window=self.window,
                    sinks=sinks)
        if self.latent_dim is None:
            return formulas.cache_bytes(self.num_blks, self.num_kv_heads,
                                        self.head_dim, **rest)
        return formulas.latent_cache_bytes(self.num_blks, self.latent_dim,
                                           self.rotary_dim, **rest)

    def bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that one token adds, as long as no window is full."""
        return self.cache_bytes(1, itemsize=itemsize)

    def weight_bytes(self, itemsize: int = 2) -> int:
        """Bytes of all parameters, itemsize for each."""
        return formulas.bytes_moved(self.num_params, itemsize)

    def break_even(self, itemsize: int = 2,
                   weight_itemsize: int | None = None) -> int | None:
        """Tokens from which on one sequence's cache outweighs the weights.

        weight_itemsize: None for the cache's; while both are the same, the
        answer does not depend on them. May exceed max_context. None where a
        window is full before.
        """
        if weight_itemsize is None:
            weight_itemsize = itemsize
        n = formulas.break_even_context(self.weight_bytes(weight_itemsize),
                                        self.bytes_per_token(itemsize))
        return n if self.window is None or n <= self.window else None


@dataclass(frozen=True)
class Card:
    """A device: memory in bytes, fp32 FLOP/s, bandwidth in bytes/s."""

    name: str
    memory: int
    flop_rate: float
    bandwidth: float
    source: str


MODELS = {model.name: model for model in (
    ModelConfig('GPT-2', 124_439_808, 12, 12, 12, 64, 1024,
                'Radford et al., 2019, and its released weights'),
    ModelConfig('Llama-2-70B', 68_976_648_192, 80, 64, 8, 128, 4096,
                'Touvron et al., Llama 2, 2023'),
    ModelConfig('Llama-3-8B', 8_030_261_248, 32, 32, 8, 128, 8192,
                'Meta, Llama 3 model card, 2024'),
    ModelConfig('Mistral-7B', 7_241_732_096, 32, 32, 8, 128, 32_768,
                'Jiang et al., Mistral 7B, 2023', window=4096),
    ModelConfig('DeepSeek-V2', 236_000_000_000, 60, 128, 128, 128, 131_072,
                'DeepSeek-AI, DeepSeek-V2, 2024 (parameters rounded)',
                latent_dim=512, rotary_dim=64),
    ModelConfig('SmolLM2-135M', 134_515_008, 30, 9, 3, 64, 8192,
                'Hugging Face, SmolLM2-135M model card, 2024'),
)}

CARDS = {card.name: card for card in (
    Card('RTX 4090', 24 * GIB, 82.6e12, 1008e9,
         'NVIDIA, Ada architecture white paper, 2022'),
    Card('T4', 16 * GIB, 8.1e12, 320e9, 'NVIDIA, T4 data sheet, 2019'),
    Card('RTX 3060 12GB', 12 * GIB, 12.7e12, 360e9,
         'NVIDIA, GeForce RTX 3060 specifications, 2021'),
    Card('A100 80GB SXM', 80 * GIB, 19.5e12, 2039e9,
         'NVIDIA, A100 data sheet, 2021'),
    Card('H100 80GB SXM', 80 * GIB, 67e12, 3350e9,
         'NVIDIA, H100 data sheet, 2023'),
    Card('H200 141GB', 141 * GIB, 67e12, 4800e9,
         'NVIDIA, H200 data sheet, 2024'),
    Card('Apple M2', 24 * GIB, 3.6e12, 100e9,  # shared with the CPU
         'Apple, announcement of M2 with 10 GPU cores, 2022'),
)}
