"""What a running server shows and keeps: the record of each session, the episode log, metrics, the status page."""
