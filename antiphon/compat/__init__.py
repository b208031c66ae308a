"""Other APIs in terms of this one: their requests become ours, our responses become theirs."""
