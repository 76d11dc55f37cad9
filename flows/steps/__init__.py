"""The steps that graphs are made of, by subject; `droveway.flows` explains the words that they use."""
