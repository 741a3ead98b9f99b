package main

import (
	"context"
	"log"
	"net"
	"os"

	proto "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// chest is a secret store with the properties of its component.
type chest struct {
	proto.UnimplementedSecretStoreServer
	secrets map[string]string
}

func (c *chest) Init(_ context.Context, request *proto.SecretStoreInitRequest) (*proto.SecretStoreInitResponse, error) {
	c.secrets = request.GetMetadata().GetProperties()
	return &proto.SecretStoreInitResponse{}, nil
}

func (*chest) Features(context.Context, *proto.FeaturesRequest) (*proto.FeaturesResponse, error) {
	return &proto.FeaturesResponse{}, nil
}

func (c *chest) Get(_ context.Context, request *proto.GetSecretRequest) (*proto.GetSecretResponse, error) {
	secret, found := c.secrets[request.GetKey()]
	if !found {
		return nil, status.Errorf(codes.NotFound, "there is no %s in the chest", request.GetKey())
	}
	return &proto.GetSecretResponse{Data: map[string]string{request.GetKey(): secret}}, nil
}

func (c *chest) BulkGet(context.Context, *proto.BulkGetSecretRequest) (*proto.BulkGetSecretResponse, error) {
	all := make(map[string]*proto.SecretResponse, len(c.secrets))
	for name, secret := range c.secrets {
		all[name] = &proto.SecretResponse{Secrets: map[string]string{name: secret}}
	}
	return &proto.BulkGetSecretResponse{Data: all}, nil
}

func (*chest) Ping(context.Context, *proto.PingRequest) (*proto.PingResponse, error) {
	return &proto.PingResponse{}, nil
}

func serveSecrets(socket string) {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	proto.RegisterSecretStoreServer(server, &chest{})
	reflection.Register(server)
	log.Fatal(server.Serve(listener))
}
