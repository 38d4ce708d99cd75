"""Values that cases hand to answers, of kinds that a submission may hand back."""

import zlib

import torch.distributed as dist


class Host(str):
    """A host name whose hash differs from rank to rank, as on real processes."""

    def __hash__(self):
        rank = dist.get_rank() if dist.is_initialized() else -1
        return zlib.crc32(f"{rank} {str(self)}".encode())
