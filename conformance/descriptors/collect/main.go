// Collect writes the descriptors compiled into Dapr's Go packages to standard output,
// as an encoded google.protobuf.FileDescriptorSet.
package main

import (
	"log"
	"os"

	_ "github.com/dapr/dapr/pkg/proto/common/v1"
	_ "github.com/dapr/dapr/pkg/proto/components/v1"
	_ "github.com/dapr/dapr/pkg/proto/internals/v1"
	_ "github.com/dapr/dapr/pkg/proto/operator/v1"
	_ "github.com/dapr/dapr/pkg/proto/placement/v1"
	_ "github.com/dapr/dapr/pkg/proto/runtime/v1"
	_ "github.com/dapr/dapr/pkg/proto/scheduler/v1"
	_ "github.com/dapr/dapr/pkg/proto/sentry/v1"
	_ "github.com/dapr/dapr/pkg/proto/workflows/v1"
	_ "github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	set := new(descriptorpb.FileDescriptorSet)
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
		return true
	})
	encoded, err := proto.Marshal(set)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(encoded); err != nil {
		log.Fatal(err)
	}
}
