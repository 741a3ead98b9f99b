package main

import (
	"context"

	"github.com/dapr/go-sdk/client"
	"google.golang.org/grpc/codes"
)

// The model echoes its input.
const model = "echo"

var conversationChecks = []check{
	{"texts", func(ctx context.Context, dapr client.Client) error {
		scrub := true
		inputs := []client.ConversationInput{{Content: "mail a@b.com", ScrubPII: &scrub}}
		answer, err := dapr.ConverseAlpha1(ctx, client.NewConversationRequest(model, inputs))
		if err != nil {
			return err
		}
		if err := same("outputs", len(answer.Outputs), 1); err != nil {
			return err
		}
		return same("result", answer.Outputs[0].Result, "mail <EMAIL_ADDRESS>")
	}},
	{"messages and tools", func(ctx context.Context, dapr client.Client) error {
		about := "The weather."
		choice := client.ToolChoiceAlpha2("weather")
		answer, err := dapr.ConverseAlpha2(ctx, client.ConversationRequestAlpha2{
			Name: model, Inputs: said("rain?"), ToolChoice: &choice,
			Tools: []*client.ConversationToolsAlpha2{{Name: "weather", Description: &about}},
		})
		if err != nil {
			return err
		}
		if err := same("outputs", len(answer.Outputs), 1); err != nil {
			return err
		}
		answered := answer.Outputs[0].Choices[0]
		return first(
			same("finish reason", answered.FinishReason, "tool_calls"),
			same("content", answered.Message.Content, "rain?"),
			same("tool", answered.Message.ToolCalls[0].ToolTypes.Name, "weather"))
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		_, err := dapr.ConverseAlpha2(ctx, client.ConversationRequestAlpha2{Name: "nobody", Inputs: said("rain?")})
		return refused("an unknown model", err, codes.InvalidArgument, "")
	}},
}

func said(text string) []*client.ConversationInputAlpha2 {
	content := []*client.ConversationMessageContentAlpha2{{Text: &text}}
	user := &client.ConversationMessageOfUserAlpha2{Content: content}
	messages := []*client.ConversationMessageAlpha2{{ConversationMessageOfUser: user}}
	return []*client.ConversationInputAlpha2{{Messages: messages}}
}
