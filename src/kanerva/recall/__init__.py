"""Attractor dynamics of a DKM: energy, recall, sampling.

    trajectory   what recall gives: Recall, Snapshot, Callback
    retriever    all that recall knows of a model and of memories
    descent      BFGS steps and a search for many small vectors at once
    search       the weights of the stored image that explains a cue best
    frame        looking into a memory: what it contains, forgetting, its contents
    counts       what a memory contains and forgets where codes are vectors of any kind
    vectors      recall and search where codes are vectors of any kind, without a codec
    methods      descent, least-squares and stochastic, each with its options; recall, sample
    watch        being told what a search looks at and finds

Each is a file of this folder.
"""
