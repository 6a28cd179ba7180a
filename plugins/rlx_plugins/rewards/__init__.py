"""The rewards that come with rlx, one file each."""
