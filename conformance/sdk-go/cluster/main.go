// The app of conformance/cluster: it answers, subscribes, hosts actors and workflows, and loads its sidecar.
//
//	cluster PORT
//	cluster none                    ends at once
//	cluster once METHOD PATH BODY   calls its sidecar until that succeeds, for Jobs
//
// /sidecar/PATH is PATH of its sidecar's HTTP API; /counts has the number of requests by path. With WORKFLOWS set it runs
// workflows.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type app struct {
	name string
	sick atomic.Bool

	lock   sync.Mutex
	counts map[string]int
	// Actors within a turn; a second call of one is an overlap.
	turns map[string]bool
	loads map[string]*load
}

func main() {
	if os.Args[1] == "none" {
		return
	}
	if len(os.Args) == 5 && os.Args[1] == "once" {
		once(os.Args[2], os.Args[3], os.Args[4])
		return
	}
	name, _ := os.Hostname()
	app := &app{name: name, counts: map[string]int{}, turns: map[string]bool{}, loads: map[string]*load{}}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: ":" + os.Args[1], Handler: app.routes()}
	go func() {
		<-interrupted.Done()
		app.sick.Store(true)
		// As a preStop hook does: the endpoints forget this pod before it stops answering.
		time.Sleep(delay())
		_ = server.Shutdown(context.Background())
	}()
	if os.Getenv("WORKFLOWS") != "" {
		go work(interrupted)
	}
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func once(method, path, body string) {
	for {
		cause := call(method, path, body)
		if cause == "" {
			break
		}
		fmt.Println(cause)
		time.Sleep(200 * time.Millisecond)
	}
	// An ordinary sidecar outlives its Job otherwise.
	if os.Getenv("SHUTDOWN") != "" {
		fmt.Println(call("POST", "/v1.0/shutdown", ""))
	}
}

func delay() time.Duration {
	given, _ := time.ParseDuration(os.Getenv("STOP_DELAY"))
	return given
}

func (a *app) routes() http.Handler {
	mux := http.NewServeMux()
	port := os.Getenv("DAPR_HTTP_PORT")
	if port == "" {
		port = "3500"
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + port})
	mux.Handle("/sidecar/", http.StripPrefix("/sidecar", proxy))
	mux.HandleFunc("/healthz", func(out http.ResponseWriter, _ *http.Request) {
		if a.sick.Load() {
			out.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/sick", func(_ http.ResponseWriter, in *http.Request) { a.sick.Store(in.Method == http.MethodPost) })
	mux.HandleFunc("/dapr/config", func(out http.ResponseWriter, _ *http.Request) {
		answer(out, map[string]any{"entities": strings.Fields(os.Getenv("ACTORS"))})
	})
	mux.HandleFunc("/dapr/subscribe", func(out http.ResponseWriter, _ *http.Request) {
		subscribed := []map[string]string{}
		for _, topic := range strings.Fields(os.Getenv("TOPICS")) {
			subscribed = append(subscribed, map[string]string{"pubsubname": "events", "topic": topic, "route": "/event/" + topic})
		}
		answer(out, subscribed)
	})
	mux.HandleFunc("/counts", func(out http.ResponseWriter, _ *http.Request) {
		a.lock.Lock()
		defer a.lock.Unlock()
		answer(out, a.counts)
	})
	mux.HandleFunc("PUT /actors/{type}/{id}/method/{method...}", a.turn)
	mux.HandleFunc("POST /loads/{name}", a.begin)
	mux.HandleFunc("GET /loads/{name}", a.loaded)
	mux.HandleFunc("DELETE /loads/{name}", a.end)
	mux.HandleFunc("/", a.echo)
	return mux
}

func answer(out http.ResponseWriter, value any) {
	out.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(out).Encode(value)
}

func (a *app) count(what string) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.counts[what]++
}

func (a *app) echo(out http.ResponseWriter, in *http.Request) {
	body, _ := io.ReadAll(in.Body)
	a.count(in.URL.Path)
	if err := tally(in.URL.Path); err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	out.Header().Set("pod", a.name)
	_, _ = out.Write(body)
}

// tally counts a request in the Redis of the variable TALLY, which outlives this pod.
func tally(path string) error {
	address := os.Getenv("TALLY")
	if address == "" {
		return nil
	}
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := fmt.Fprintf(connection, "INCR %s\r\n", path); err != nil {
		return err
	}
	_, err = connection.Read(make([]byte, 64))
	return err
}

func (a *app) turn(out http.ResponseWriter, in *http.Request) {
	actor := in.PathValue("type") + "/" + in.PathValue("id")
	a.lock.Lock()
	if a.turns[actor] {
		a.counts["overlaps"]++
	}
	a.turns[actor] = true
	a.counts[actor]++
	a.lock.Unlock()
	time.Sleep(2 * time.Millisecond)
	a.lock.Lock()
	delete(a.turns, actor)
	a.lock.Unlock()
	answer(out, a.name)
}

// load calls an address of the sidecar at a fixed rate.
type load struct {
	stop context.CancelFunc
	done sync.WaitGroup

	lock   sync.Mutex
	Sent   int            `json:"sent"`
	Failed int            `json:"failed"`
	Causes map[string]int `json:"causes"`
	// First and last failure.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Slowest is the longest call, in milliseconds.
	Slowest int64 `json:"slowest"`
}

type order struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   string `json:"body"`
	Rate   int    `json:"rate"`
	// Many numbers the paths: '#' in the path is a number below it.
	Many int `json:"many"`
}

var calls = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (a *app) begin(out http.ResponseWriter, in *http.Request) {
	var given order
	if err := json.NewDecoder(in.Body).Decode(&given); err != nil || given.Rate < 1 {
		http.Error(out, fmt.Sprint("no order: ", err), http.StatusBadRequest)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	started := &load{stop: stop, Causes: map[string]int{}}
	a.lock.Lock()
	a.loads[in.PathValue("name")] = started
	a.lock.Unlock()
	started.done.Add(1)
	go started.run(ctx, given)
}

func (l *load) run(ctx context.Context, given order) {
	defer l.done.Done()
	// A busy machine delays calls, and skips none.
	for number, due := 0, time.Now(); ctx.Err() == nil; number++ {
		due = due.Add(time.Second / time.Duration(given.Rate))
		time.Sleep(time.Until(due))
		path := given.Path
		if given.Many > 0 {
			path = strings.ReplaceAll(path, "#", fmt.Sprint(number%given.Many))
		}
		l.done.Add(1)
		go func() {
			defer l.done.Done()
			begun := time.Now()
			l.note(call(given.Method, path, given.Body), begun)
		}()
	}
}

// call returns the cause of a failure, empty on success.
func call(method, path, body string) string {
	request, err := http.NewRequest(method, "http://127.0.0.1:3500"+path, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	request.Header.Set("content-type", "application/json")
	response, err := calls.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	if response.StatusCode/100 == 2 {
		return ""
	}
	return fmt.Sprint(response.StatusCode, " ", string(text))
}

func (l *load) note(cause string, begun time.Time) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.Sent++
	l.Slowest = max(l.Slowest, time.Since(begun).Milliseconds())
	if cause == "" {
		return
	}
	l.Failed++
	if l.First.IsZero() {
		l.First = begun
	}
	l.Last = begun
	if len(l.Causes) < 50 || l.Causes[cause] > 0 {
		l.Causes[cause]++
	}
}

func (a *app) find(in *http.Request) *load {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.loads[in.PathValue("name")]
}

func (a *app) loaded(out http.ResponseWriter, in *http.Request) {
	found := a.find(in)
	if found == nil {
		http.NotFound(out, in)
		return
	}
	found.lock.Lock()
	defer found.lock.Unlock()
	answer(out, found)
}

// end waits for calls that have begun, and answers as loaded.
func (a *app) end(out http.ResponseWriter, in *http.Request) {
	if found := a.find(in); found != nil {
		found.stop()
		found.done.Wait()
	}
	a.loaded(out, in)
}
