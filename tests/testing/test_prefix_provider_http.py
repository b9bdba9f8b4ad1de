"""The providers' own SDKs read usage from the fake provider's answers, plain and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from knapcache.testing.prefix_provider import PrefixProvider, VirtualClock

LONG = "word." * 2400
"""12,000 bytes, 3,000 tokens by the default tokenizer."""
MARKED: Any = [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]}]


@pytest.fixture
def provider() -> Iterator[PrefixProvider]:
    with PrefixProvider(clock=VirtualClock()) as provider:
        yield provider
        provider.check()


@pytest.fixture
def claude(provider: PrefixProvider) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=provider.url, api_key="one", max_retries=2) as sdk:
        yield sdk


@pytest.fixture
def gpt(provider: PrefixProvider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.openai_url, api_key="one", max_retries=2) as sdk:
        yield sdk


def test_messages_report_reads_and_writes(claude: anthropic.Anthropic, provider: PrefixProvider) -> None:
    usage = claude.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=MARKED).usage
    assert (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 3000, 0)
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_5m_input_tokens == 3000
    assert usage.cache_creation.ephemeral_1h_input_tokens == 0
    with claude.messages.stream(model="claude-sonnet-4-6", max_tokens=9, messages=MARKED) as stream:
        start = next(event for event in stream if event.type == "message_start").message.usage.model_copy()
        end = stream.get_final_message().usage
    for usage in (start, end):
        assert (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0, 3000)
    assert end.output_tokens > start.output_tokens
    assert provider.cost() == 3000 * 1.25 + 300


def test_errors_have_the_form_of_the_provider(claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    blocks: Any = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 5
    with pytest.raises(anthropic.BadRequestError, match="maximum of 4 blocks"):
        claude.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=[{"role": "user", "content": blocks}])
    options: Any = {"mode": "none"}
    with pytest.raises(openai.BadRequestError, match="implicit or explicit"):
        gpt.responses.create(model="gpt-5.6", input="a", prompt_cache_options=options)


def test_a_failed_request_is_not_billed(claude: anthropic.Anthropic, provider: PrefixProvider) -> None:
    provider.fail("429")
    usage = claude.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=MARKED).usage
    assert usage.cache_creation_input_tokens == 3000
    assert (provider.count(), len(provider.ledger)) == (2, 1)
    provider.fail("529")
    with pytest.raises(anthropic.InternalServerError):
        claude.with_options(max_retries=0).messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=MARKED)
    assert len(provider.ledger) == 1


def test_a_stream_that_is_cut_was_billed_and_written(claude: anthropic.Anthropic, provider: PrefixProvider) -> None:
    provider.fail("cut")
    list(claude.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=MARKED, stream=True))
    usage = claude.messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=MARKED).usage
    assert usage.cache_read_input_tokens == 3000
    assert [row.charge.short_written for row in provider.ledger] == [3000, 0]


def test_chat_reports_reads_and_writes(gpt: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": LONG}]
    usage = gpt.chat.completions.create(model="gpt-5.6", messages=messages).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cache_write_tokens) == (3000, 3000)
    chunks = list(
        gpt.chat.completions.create(
            model="gpt-5.6", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens) == (3000, 0)
    assert usage.total_tokens == 3000 + usage.completion_tokens


def test_responses_report_reads_and_writes(gpt: openai.OpenAI) -> None:
    usage = gpt.responses.create(model="gpt-5.6", input=LONG).usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cache_write_tokens) == (3000, 3000)
    events = list(gpt.responses.create(model="gpt-5.6", input=LONG, stream=True))
    done = events[-1]
    assert done.type == "response.completed"
    assert done.response.usage is not None
    assert done.response.usage.input_tokens_details.cached_tokens == 3000
