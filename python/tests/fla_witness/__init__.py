"""FLA as a witness: its functions, reached through `deltarelay.fla.enable()`, beside its naive references."""
