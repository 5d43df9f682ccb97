package application_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

// A session of two turns: the first is streamed, the second waited for. The
// adapters are fakes here; package composition has the real ones.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	workspace := filepath.Join(dir, "project")
	for _, d := range []string{workspace, filepath.Join(dir, "state")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			log.Fatal(err)
		}
	}
	records, err := portstest.MemoryStoreAt(filepath.Join(dir, "state"))
	if err != nil {
		log.Fatal(err)
	}
	o, err := application.New(application.Config{
		Agents:   []ports.AgentAdapter{portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat"}},
		Sessions: &portstest.FakeSessionFactory{},
		Commands: &fakeRunner{},
		Store:    records,
		Host:     ports.Host{LookupEnv: os.LookupEnv},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer o.Close(ctx)

	session, err := o.Open(ctx, application.OpenRequest{Agent: "fake", Workspace: workspace})
	if err != nil {
		log.Fatal(err)
	}
	turn, err := session.Send(ctx, "remember the xylophone")
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range turn.Events() {
		if err != nil {
			log.Fatal(err)
		}
		switch reply := event.Reply.(type) {
		case domain.SandboxApplied:
			fmt.Println(event.Seq, "confined:", !reply.Receipt.Unconfined)
		case domain.Text:
			fmt.Println(event.Seq, reply.Text)
		case domain.Final:
			fmt.Println(event.Seq, reply.Outcome)
		}
	}
	final, err := session.SendBlocking(ctx, "recall")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(final.Text)
	// Output:
	// 1 confined: true
	// 3 noted
	// 4 completed
	// earlier: remember the xylophone
}
