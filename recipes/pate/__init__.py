"""PATE (Papernot et al. 2018), the paper's third baseline: teachers vote on public images, a student learns from it.

Every record trains one teacher. Teachers are never released; for some public images their noisy majority is. So what
is accounted for is the votes, not training steps, and the student may be any network, trained without noise.
"""
