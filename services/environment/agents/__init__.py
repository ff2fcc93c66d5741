"""Environments that are programs of the user's: they speak to an OpenAI-compatible endpoint.

program ── POST …/chat/completions ──▶ app ──▶ desk ──▶ messages of Opening or Reply ──▶ controller
        ◀─ the answer ──────────────── app ◀── desk ◀── Step(message) ◀───────────────── controller
"""
