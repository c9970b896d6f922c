"""Search over the steps of a decoder: greedy, beam, sampling."""
