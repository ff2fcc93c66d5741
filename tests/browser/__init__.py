"""The pages in Debian's chromium, driven by Playwright, over fake runs."""
