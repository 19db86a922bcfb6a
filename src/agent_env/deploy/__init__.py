"""Our servers on engines that others run: see docs/deploy.md."""
