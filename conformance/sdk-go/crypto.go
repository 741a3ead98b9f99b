package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/dapr/go-sdk/client"
)

var cryptoChecks = []check{
	{"documents come back", func(ctx context.Context, dapr client.Client) error {
		for _, size := range []int{5, 1 << 16, 1_000_000} {
			for _, cipher := range []string{"aes-gcm", "chacha20-poly1305"} {
				plain := bytes.Repeat([]byte{7}, size)
				sealed, err := encrypt(ctx, dapr, plain, cipher)
				if err != nil {
					return err
				}
				opened, err := decrypt(ctx, dapr, sealed)
				what := fmt.Sprintf("%d bytes, %s", size, cipher)
				if err := first(err, same(what, bytes.Equal(opened, plain), true)); err != nil {
					return err
				}
			}
		}
		return nil
	}},
	{"a modified document is refused", func(ctx context.Context, dapr client.Client) error {
		sealed, err := encrypt(ctx, dapr, []byte("ahoy"), "aes-gcm")
		if err != nil {
			return err
		}
		sealed[len(sealed)-1] ^= 1
		if opened, err := decrypt(ctx, dapr, sealed); err == nil {
			return fmt.Errorf("it was opened: %q", opened)
		}
		return nil
	}},
}

func encrypt(ctx context.Context, dapr client.Client, plain []byte, cipher string) ([]byte, error) {
	stream, err := dapr.Encrypt(ctx, bytes.NewReader(plain), client.EncryptOptions{
		ComponentName: "keys", KeyName: "symmetric", KeyWrapAlgorithm: "AES", DataEncryptionCipher: cipher})
	if err != nil {
		return nil, err
	}
	return io.ReadAll(stream)
}

func decrypt(ctx context.Context, dapr client.Client, sealed []byte) ([]byte, error) {
	stream, err := dapr.Decrypt(ctx, bytes.NewReader(sealed), client.DecryptOptions{ComponentName: "keys"})
	if err != nil {
		return nil, err
	}
	return io.ReadAll(stream)
}
