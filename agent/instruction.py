"""The instruction encoder: a level's instruction, as ids of words, to features that join those of the image.

How words become ids is the environment's business; 0 stands for no word.
"""

import torch
from torch import Tensor, nn

EMBEDDING_SIZE, INSTRUCTION_SIZE = 20, 64


class InstructionEncoder(nn.Module):
    """An embedding and an LSTM over the words; sizes as in the code of IMPALA (Espeholt et al. 2018, figure 3).

    Args:
        vocabulary: number of ids, that of no word included.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING_SIZE, padding_idx=0)
        self.lstm = nn.LSTM(EMBEDDING_SIZE, INSTRUCTION_SIZE, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        """Words [N, W] int64, padded with 0 at the end, to the LSTM's output [N, INSTRUCTION_SIZE] at the last word.

        Zeros where there is none. Equal instructions are encoded once, for an episode has one or few; to count them, a
        GPU must be waited for.
        """
        words, index = torch.unique(words, dim=0, return_inverse=True)
        outputs, _ = self.lstm(self.embedding(words))
        length = (words != 0).sum(dim=1)
        last = outputs[torch.arange(len(words), device=words.device), (length - 1).clamp(min=0)]
        return last.masked_fill((length == 0)[:, None], 0.0)[index]
