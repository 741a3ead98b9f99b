"""Conversation: both versions of the API, with the echo model."""

import unittest

from world import client, component

MODEL = "echo"


def resources(_data):
    return [component(MODEL, "conversation.echo")]


class Conversation(unittest.TestCase):
    """converse_alpha1 and converse_alpha2."""

    def test_texts(self):
        from dapr.clients.grpc.conversation import ConversationInput
        with client() as dapr:
            answer = dapr.converse_alpha1(
                name=MODEL, context_id="c", temperature=0.5,
                inputs=[ConversationInput(content="mail a@b.com", role="user", scrub_pii=True),
                        ConversationInput(content="from 10.8.9.1")])
        self.assertEqual(answer.context_id, "c")
        self.assertEqual([output.result for output in answer.outputs], ["mail <EMAIL_ADDRESS>\nfrom 10.8.9.1"])

    def test_messages_and_tools(self):
        from dapr.clients.grpc import conversation as talk
        tool = talk.ConversationTools(function=talk.ConversationToolsFunction(
            name="weather", description="The weather.",
            parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}))
        messages = [talk.create_system_message("be brief"), talk.create_user_message("rain?"),
                    talk.create_tool_message("t-1", "weather", "yes")]
        with client() as dapr:
            answer = dapr.converse_alpha2(
                name=MODEL, inputs=[talk.ConversationInputAlpha2(messages=messages)], tools=[tool],
                tool_choice="weather", context_id="c", temperature=0.1, metadata={"k": "v"})
        choice = answer.outputs[0].choices[0]
        self.assertEqual((answer.context_id, choice.finish_reason), ("c", "tool_calls"))
        self.assertEqual(choice.message.content.splitlines(), [
            "be brief", "rain?", "Tool Response for tool ID 't-1' with name 'weather': yes"])
        call = choice.message.tool_calls[0]
        self.assertEqual((call.function.name, call.function.arguments), ("weather", "city"))
        self.assertEqual(answer.outputs[0].usage.total_tokens, 26)

    def test_what_makes_no_sense_is_refused(self):
        import grpc
        from dapr.clients.exceptions import DaprGrpcError
        from dapr.clients.grpc import conversation as talk
        inputs = [talk.ConversationInputAlpha2(messages=[talk.create_user_message("x")])]
        for name, more in (("other", {}), (MODEL, {"tool_choice": "required"})):
            with client() as dapr, self.assertRaises(DaprGrpcError) as raised:
                dapr.converse_alpha2(name=name, inputs=inputs, **more)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
