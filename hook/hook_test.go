package hook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip/spec"
)

// agent is what hooks have around them.
type agent struct {
	*Hooks
	t      *testing.T
	store  keep.Store[Row]
	events *event.Log
	log    logbuffer.Buffer
	end    func()
}

// secretText is the content of the secret file of every webhook.
const secretText = "0123456789abcdef"

// bucket returns a store in a file.
func bucket(t *testing.T) *store.Bucket[Row] {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	t.Cleanup(func() { expect.Succeed(t, db.Close()) })
	return store.NewBucket[Row](db, "hooks")
}

// create returns hooks that are not running.
func create(t *testing.T, s keep.Store[Row], hooks ...Config) *agent {
	a := &agent{t: t, store: s, events: event.NewLog(10, time.Now)}
	a.Hooks = New(Options{Node: "lb1", Store: s, Events: a.events, Clock: table.NewClock(time.Now()), Log: slog.New(slog.NewTextHandler(&a.log, nil))}, hooks)
	a.retry = backoff.Backoff{Lo: time.Millisecond, Hi: 2 * time.Millisecond}
	return a
}

// run starts the hooks. They end with the test, or with end.
func (a *agent) run() *agent {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	a.end = sync.OnceFunc(func() {
		cancel()
		expect.Succeed(a.t, <-ended, "Run")
	})
	a.t.Cleanup(a.end)
	return a
}

// add adds events of a kind about objects "1" to "n".
func (a *agent) add(kind string, n int) {
	for i := range n {
		a.events.Add(event.Event{Kind: kind, Object: strconv.Itoa(i + 1), Message: "it happened"})
	}
}

// queued returns the number of documents of all hooks that are not delivered.
func (a *agent) queued() (n int) {
	a.each(func(_ string, queued int, _ *stats) { n += queued })
	return n
}

func (a *agent) stats(name string) (out stats) {
	a.each(func(is string, _ int, s *stats) {
		if is == name {
			out = *s
		}
	})
	return out
}

func (a *agent) empty() {
	a.t.Helper()
	wait.Until(a.t, "every event is delivered", func() bool { return a.queued() == 0 })
	wait.Until(a.t, "the store is empty", func() bool {
		all, err := a.store.All()
		return err == nil && len(all) == 0
	})
}

// settings returns a hook with the defaults.
func settings(name string, change func(*Config)) Config {
	c := Config{Name: name, Events: []string{"*"}}
	c.Defaults()
	change(&c)
	return c
}

// receiver is a webhook that checks signatures.
type receiver struct {
	*httptest.Server
	t *testing.T

	mu     sync.Mutex
	answer func(w http.ResponseWriter, r *http.Request) (accepted bool) // nil: accepts
	got    []Document                                                   // accepted
	tries  int
}

func newReceiver(t *testing.T, answer func(w http.ResponseWriter, r *http.Request) bool) *receiver {
	r := &receiver{t: t, answer: answer}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body := must.Get(io.ReadAll(q.Body))(r.t)
	expect.Equal(r.t, q.Method+" "+q.Header.Get("Content-Type"), "POST application/json")
	expect.Equal(r.t, q.Header.Get(SignatureHeader), fmt.Sprintf("sha256=%x", sign([]byte(secretText), body)), "signature")
	var d Document
	expect.Succeed(r.t, json.Unmarshal(body, &d))
	q.Header.Set("X-Object", d.Object) // for answer
	r.mu.Lock()
	r.tries++
	answer := r.answer
	r.mu.Unlock()
	if answer == nil || answer(w, q) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, d)
	}
}

func (r *receiver) hook(name string, change func(*Config)) Config {
	secret := filepath.Join(r.t.TempDir(), "secret")
	must.Succeed(r.t, os.WriteFile(secret, []byte(secretText+"\n"), 0o600))
	return settings(name, func(c *Config) {
		c.URL, c.SecretFile = r.URL, secret
		if change != nil {
			change(c)
		}
	})
}

// objects returns the objects of the accepted documents, with the number of dropped ones before each.
func (r *receiver) objects() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.got {
		text := d.Object
		if d.Dropped > 0 {
			text = fmt.Sprintf("(%d)%s", d.Dropped, text)
		}
		out = append(out, text)
	}
	return out
}

func numbers(n int) (out []string) {
	for i := range n {
		out = append(out, strconv.Itoa(i+1))
	}
	return out
}

// A webhook gets every document in order and signed, however often it refuses some or does not answer.
func TestWebhook(t *testing.T) {
	const fails = 4
	var tries int
	r := newReceiver(t, nil)
	r.answer = func(w http.ResponseWriter, q *http.Request) bool {
		if tries++; tries%(fails+1) == 0 {
			return true
		}
		switch tries % (fails + 1) {
		case 1:
			http.Error(w, "busy\x1b[31m", http.StatusServiceUnavailable)
		case 2:
			http.Redirect(w, q, "/elsewhere", http.StatusTemporaryRedirect)
		case 3:
			if tries < fails { // once, because the timeout is long enough for a slow machine
				<-q.Context().Done()
			}
			panic(http.ErrAbortHandler)
		case 4:
			panic(http.ErrAbortHandler)
		}
		return false
	}
	a := create(t, bucket(t), r.hook("pager", func(c *Config) { c.Timeout = spec.Duration(2 * time.Second) })).run()
	a.add("node_lost", 6)
	a.empty()
	expect.SameList(t, r.objects(), numbers(6))
	expect.Equal(t, tries, 6*(fails+1), "requests")
	s := a.stats("pager")
	if s.delivered != 6 || s.failed != 6*fails || s.full.count+s.rejected.count != 0 || s.err != nil || len(a.Problems()) > 0 {
		t.Errorf("%+v %v", s, a.Problems())
	}
	log := a.log.String()
	expect.Equal(t, strings.Count(log, "hook failed"), 6, "failures in the log, each the first of a series:\n%s", log)
	expect.Contains(t, log, `output="busy [31m"`)
	expect.Contains(t, log, "503")
}

// A document that a webhook rejects does not block the queue for ever: after some attempts it is dropped, and said to be.
// An answer that may change is no rejection, and the drop of an event about a drop is no event.
func TestRejectedDocuments(t *testing.T) {
	r := newReceiver(t, nil)
	tries := map[string]int{}
	r.answer = func(w http.ResponseWriter, q *http.Request) bool {
		id := q.Header.Get("X-Object")
		tries[id]++
		status := map[string]int{"2": http.StatusBadRequest, "pager": http.StatusUnprocessableEntity}[id]
		if id == "3" && tries[id] <= 3*maxRejections {
			status = [...]int{http.StatusTooManyRequests, http.StatusUnauthorized, http.StatusInternalServerError}[tries[id]%3]
		}
		if status == 0 {
			return true
		}
		w.WriteHeader(status)
		return false
	}
	a := create(t, bucket(t), r.hook("pager", nil)).run()
	a.add("node_lost", 4)
	a.empty()
	expect.SameList(t, r.objects(), []string{"1", "3", "4"})
	expect.True(t, reflect.DeepEqual(tries, map[string]int{"1": 1, "2": maxRejections, "3": 3*maxRejections + 1, "4": 1, "pager": maxRejections}), "requests: %v", tries)
	events, _ := a.events.Since(0)
	last := events[len(events)-1]
	expect.Equal(t, last.Kind+" "+last.Object, eventRejected+" pager")
	expect.Contains(t, last.Message, "node_lost 2: the webhook answered 400 Bad Request, for the 10th time")
	expect.Len(t, events, 5)
	problems := a.Problems()
	must.Len(t, problems, 2)
	expect.Contains(t, problems[1].Message, "hook pager has lost 2 events because its webhook rejected them")
	scrape := httptest.NewRecorder()
	metric.Handler(a.Collect).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	expect.Contains(t, scrape.Body.String(), "ironvip_hook_rejected_total{hook=\"pager\"} 2\n")
}

// Rejections of a hook that was changed meanwhile are not those of its new receiver.
func TestRejectionsEndWithAChange(t *testing.T) {
	reject := func(w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusBadRequest)
		return false
	}
	var good, bad *receiver
	var a *agent
	good = newReceiver(t, func(w http.ResponseWriter, _ *http.Request) bool { return good.tries > 1 || reject(w) })
	corrected := good.hook("pager", nil)
	bad = newReceiver(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if bad.tries == maxRejections-1 {
			a.Reload([]Config{corrected})
		}
		return reject(w)
	})
	a = create(t, bucket(t), bad.hook("pager", nil)).run()
	a.add("node_lost", 1)
	a.empty()
	expect.SameList(t, good.objects(), numbers(1))
}

// A webhook can have a certificate of a private authority, and ask for one of the agent, also behind a proxy. The files are
// read for each connection.
func TestPrivateAuthority(t *testing.T) {
	t.Run("directly", privateAuthority)
	t.Run("by a proxy", func(t *testing.T) {
		var proxied atomic.Int32
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			proxied.Add(1)
			server := must.Get(net.Dial("tcp", r.Host))(t)
			w.WriteHeader(http.StatusOK)
			client, read, err := w.(http.Hijacker).Hijack()
			must.Succeed(t, err)
			go func() { defer server.Close(); _, _ = io.Copy(server, read) }() // the server may have read a byte of the handshake
			go func() { defer client.Close(); _, _ = io.Copy(client, server) }()
		}))
		t.Cleanup(proxy.Close)
		transport := http.DefaultTransport.(*http.Transport)
		before := transport.Proxy
		t.Cleanup(func() { transport.Proxy = before })
		transport.Proxy = http.ProxyURL(must.Get(url.Parse(proxy.URL))(t))
		privateAuthority(t)
		expect.AtLeast(t, proxied.Load(), 2, "connections by the proxy")
	})
}

func privateAuthority(t *testing.T) {
	ours := authority.New(t)
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	r := &receiver{t: t}
	r.Server = httptest.NewUnstartedServer(r)
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	r.StartTLS()
	t.Cleanup(r.Close)
	ours.WriteCert(t, ca) // not that of the server
	ours.Client(t, "lb1").Write(t, cert, key)
	a := create(t, bucket(t), r.hook("pager", func(c *Config) { c.CAFile, c.CertFile, c.KeyFile = ca, cert, key })).run()
	a.add("node_lost", 2)
	wait.Until(t, "it fails", func() bool { return len(a.Problems()) == 1 })
	expect.Contains(t, a.Problems()[0].Message, "certificate signed by unknown authority")
	must.Succeed(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}), 0o600))
	a.empty()
	expect.SameList(t, r.objects(), numbers(2))
}

// script writes a program that appends what it gets to the file of the same name with ".out".
func script(t *testing.T, body string) (words []string, output func() string) {
	path := filepath.Join(t.TempDir(), "program")
	text := "#!/bin/sh\nout=" + path + ".out\n" + body + "\n"
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o700))
	return []string{path, "a b", "$x;"}, func() string {
		text, _ := os.ReadFile(path + ".out")
		return string(text)
	}
}

// A program gets the facts as arguments, environment and JSON, nothing else of the agent's environment, and runs once for each
// event, in order and alone, whatever its exit status.
func TestProgram(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "x")
	words, output := script(t, `
mkdir $out.lock || echo two at once >>$out
echo "$@ $PWD ${SECRET_TOKEN-none} $IRONVIP_HOOK $IRONVIP_NODE $IRONVIP_ID $IRONVIP_TIME $IRONVIP_KIND [$IRONVIP_SERVICE] $IRONVIP_OBJECT $IRONVIP_MESSAGE $IRONVIP_DROPPED" >>$out
cat >>$out
echo output of $IRONVIP_OBJECT; head -c 100000 /dev/zero | tr '\0' x
rmdir $out.lock
exit $IRONVIP_OBJECT`)
	a := create(t, bucket(t), settings("move", func(c *Config) { c.Command = words })).run()
	a.events.Add(event.Event{Kind: "vip_announced", Object: "0", Message: "a\x00 $(b)\n\"c\""})
	a.add("vip_withdrawn", 2)
	a.empty()
	lines := strings.Split(strings.ReplaceAll(output(), "a $(b)\n", "a $(b) "), "\n")
	must.Len(t, lines, 7, "%q", lines)
	for i, kind := range []string{"vip_announced", "vip_withdrawn", "vip_withdrawn"} {
		var d Document
		must.Succeed(t, json.Unmarshal([]byte(lines[2*i+1]), &d), "%s", lines[2*i+1])
		if d.Kind != kind || d.Object != strconv.Itoa(i) || d.Hook != "move" || d.Node != "lb1" {
			t.Errorf("document %d: %+v", i, d)
		}
		message := strings.NewReplacer("\x00", "", "\n", " ").Replace(d.Message)
		want := fmt.Sprintf("a b $x; / none move lb1 %d %s %s [] %d %s 0", d.ID, d.Time.UTC().Format(time.RFC3339Nano), kind, i, message)
		expect.Equal(t, lines[2*i], want, "run %d", i)
	}
	s := a.stats("move")
	expect.Equal(t, fmt.Sprint(s.delivered, " ", s.failed), "1 2", "successes and failures")
	problems := a.Problems()
	must.Len(t, problems, 1)
	expect.Contains(t, problems[0].Message, "exit status 2")
	log := a.log.String()
	expect.Contains(t, log, "output of 0")
	expect.AtMost(t, len(log), 3*5000, "bytes of the log")
}

// A program that hangs is killed with its children at its time limit, and the next event comes.
func TestHangingProgram(t *testing.T) {
	words, output := script(t, `
case $IRONVIP_OBJECT in
1) trap '' TERM; sleep 1000 & echo $! >>$out; wait; sleep 1000;;
2) sleep 1000 & echo $! >>$out;;
3) echo "later $IRONVIP_OBJECT" >>$out;;
esac`)
	a := create(t, bucket(t), settings("slow", func(c *Config) { c.Command, c.Timeout = words, spec.Duration(300*time.Millisecond) })).run()
	a.add("node_lost", 3)
	a.empty()
	lines := strings.Fields(output())
	must.SameList(t, lines[2:], []string{"later", "3"})
	for _, pid := range lines[:2] {
		wait.Until(t, "the child ends", func() bool {
			text, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(text), ") Z")
		})
	}
	expect.Contains(t, a.log.String(), "not finished after 300ms")
	expect.Equal(t, fmt.Sprint(a.stats("slow").delivered, " ", a.stats("slow").failed), "2 1")
}

// Receivers that never answer, and programs that never end, delay neither an event, nor other hooks, nor the stop. The next
// run delivers what they have not accepted, in order and once.
func TestReceiversDelayNothingElse(t *testing.T) {
	s := bucket(t)
	asked := make(chan struct{}, 1)
	dead := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) bool {
		asked <- struct{}{}
		<-q.Context().Done()
		return false
	})
	words, output := script(t, `echo >>$out; exec sleep 1000`)
	long := func(c *Config) { c.Timeout = spec.Duration(5 * time.Minute) }
	good := newReceiver(t, nil)
	hooks := []Config{dead.hook("dead", long), settings("hang", func(c *Config) { c.Command = words; long(c) }), good.hook("good", nil)}
	a := create(t, s, hooks...).run()
	a.add("node_lost", 50)
	<-asked
	wait.Until(t, "the program runs", func() bool { return output() != "" })
	wait.Until(t, "the good receiver has accepted all", func() bool { return a.stats("good").delivered == 50 })
	a.end()
	must.Equal(t, a.queued(), 100, "queued at the end")

	dead.answer = nil
	after, text := script(t, `printf "$IRONVIP_OBJECT " >>$out`)
	hooks[1].Command = after
	a = create(t, s, hooks...).run()
	a.events.Add(event.Event{Kind: "node_lost", Object: "51"})
	a.empty()
	for name, got := range map[string][]string{"dead": dead.objects(), "hang": strings.Fields(text()), "good": good.objects()} {
		expect.SameList(t, got, numbers(51), name)
	}
}

// A full queue drops its oldest documents except the one in delivery. The document after them says how many, also in the next
// run of the agent, and so do the status and metrics.
func TestFullQueue(t *testing.T) {
	s := bucket(t)
	asked := make(chan struct{}, 1)
	r := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) bool {
		asked <- struct{}{}
		<-q.Context().Done()
		return false
	})
	small := r.hook("small", func(c *Config) { c.Queue, c.Timeout = 10, spec.Duration(5*time.Minute) })
	a := create(t, s, small).run()
	a.add("node_lost", 1)
	<-asked
	for i := range 1000 {
		a.events.Add(event.Event{Kind: "node_lost", Object: strconv.Itoa(i + 2)})
	}
	must.Equal(t, a.queued(), 10, "queued")
	must.Equal(t, a.stats("small").full.count, 991, "dropped")
	expect.Equal(t, strings.Count(a.log.String(), "queue of a hook is full"), 1, "lines of the log")
	problems := a.Problems()
	must.Len(t, problems, 1)
	expect.Contains(t, problems[0].Message, "hook small has lost 991 events because its queue was full")
	scrape := httptest.NewRecorder()
	metric.Handler(a.Collect).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
	expect.Contains(t, scrape.Body.String(), "ironvip_hook_dropped_total{hook=\"small\"} 991\n")
	expect.Contains(t, scrape.Body.String(), "ironvip_hook_queued_events{hook=\"small\"} 10\n")
	a.end()

	r.answer = nil
	a = create(t, s, small).run()
	a.empty()
	expect.SameList(t, r.objects(), []string{"1", "(991)993", "994", "995", "996", "997", "998", "999", "1000", "1001"})
}

// A changed hook takes effect at once: it does not wait for the end of a pause. A removed one ends, and its queue with it.
func TestReload(t *testing.T) {
	s := bucket(t)
	r := newReceiver(t, nil)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	failing := r.hook("pager", func(c *Config) { c.URL = gone.URL })
	other := r.hook("other", func(c *Config) { c.URL = gone.URL })
	a := create(t, s, failing, other)
	a.retry = backoff.Backoff{Lo: time.Hour, Hi: time.Hour}
	a.run()
	a.add("node_lost", 3)
	wait.Until(t, "both fail", func() bool { return a.stats("pager").failed == 1 && a.stats("other").failed == 1 })
	added := r.hook("added", func(c *Config) { c.Events = []string{"node_returned"} })
	good := failing
	good.URL = r.URL
	a.Reload([]Config{good, added})
	a.add("node_returned", 1)
	a.empty()
	count := map[string]int{}
	for _, d := range r.got {
		count[d.Hook]++
	}
	expect.True(t, reflect.DeepEqual(count, map[string]int{"pager": 4, "added": 1}), "%v", count)
	expect.Contains(t, a.log.String(), "hook removed: its queued events are not delivered\" hook=other events=3")

	// A hook that the next run no longer has.
	a.Reload([]Config{failing})
	a.add("node_lost", 2)
	a.end()
	a = create(t, s).run()
	a.empty()
	expect.Contains(t, a.log.String(), "hook=pager events=2")
}

// A smaller queue applies to what is queued, and counts what it drops.
func TestSmallerQueue(t *testing.T) {
	r := newReceiver(t, nil)
	a := create(t, bucket(t), r.hook("pager", nil))
	a.add("node_lost", 30)
	a.Reload([]Config{r.hook("pager", func(c *Config) { c.Queue = 10 })})
	a.run()
	a.empty()
	expect.SameList(t, r.objects(), append([]string{"(20)21"}, numbers(30)[21:]...))
}

// Documents that can't be read are removed, and the others delivered.
func TestUnreadableDocuments(t *testing.T) {
	db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	t.Cleanup(func() { expect.Succeed(t, db.Close()) })
	must.Succeed(t, store.NewBucket[string](db, "hooks").Put("pager/1", "no row"))
	r := newReceiver(t, nil)
	s := store.NewBucket[Row](db, "hooks")
	must.Succeed(t, s.Put(fmt.Sprintf("pager/%020d", 2), Row{2, Document{Hook: "pager", Event: event.Event{Object: "2"}}}))
	a := create(t, s, r.hook("pager", nil)).run()
	a.empty()
	expect.SameList(t, r.objects(), []string{"2"})
	expect.Contains(t, a.log.String(), "queued events of hooks are lost: unreadable")
}

// A hook gets the events of its kinds, services and objects. An event that names none passes.
func TestWants(t *testing.T) {
	c := Config{Events: []string{"vip_*", "service_down", "services_changed"}, Services: []string{"shop/*", "default/web"}, Objects: []string{"192.0.2.1?", "2001:db8::*"}}
	for want, events := range map[bool][]event.Event{
		true: {
			{Kind: "vip_announced", Object: "192.0.2.10"}, {Kind: "vip_withdrawn", Object: "2001:db8::1"}, {Kind: "vip_withdrawn"},
			{Kind: "service_down", Service: "shop/web"}, {Kind: "service_down", Service: "web"}, {Kind: "services_changed"},
		},
		false: {
			{Kind: "service_degraded", Service: "web"}, {Kind: "vip_announced", Object: "192.0.2.2"}, {Kind: "service_down", Service: "db"}, {Kind: "service_down", Service: "prod/web"}, {Kind: "vi"},
		},
	} {
		for _, e := range events {
			expect.Equal(t, c.wants(&e), want, "%+v", e)
		}
	}
}

// A secret that can't be read fails the request, which is tried again with the new one.
func TestSecretIsReadEachTime(t *testing.T) {
	r := newReceiver(t, nil)
	c := r.hook("pager", nil)
	must.Succeed(t, os.Rename(c.SecretFile, c.SecretFile+".away"))
	a := create(t, bucket(t), c).run()
	a.add("node_lost", 1)
	wait.Until(t, "it fails", func() bool { return len(a.Problems()) == 1 })
	expect.Contains(t, a.Problems()[0].Message, c.SecretFile)
	must.Succeed(t, os.Rename(c.SecretFile+".away", c.SecretFile))
	a.empty()
	expect.Equal(t, r.tries, 1, "requests")
}
