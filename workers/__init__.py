"""The worker daemon of a hypervisor host: journal, actions and disk transfer."""
