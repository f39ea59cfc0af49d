package hook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/command"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/internal/tlsfile"
)

// SignatureHeader has "sha256=" and the HMAC-SHA256 of the body of a request, in hexadecimal digits.
const SignatureHeader = "X-Ironvip-Signature"

const eventRejected = "hook_rejected"

// maxRejections is how often a webhook may reject one document, in about five minutes.
const maxRejections = 10

// notOfTheDocument are the statuses of the class 4xx that another configuration of the webhook, or another time, can change.
var notOfTheDocument = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
	http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests}

// rejection is an answer that says that the request will never be accepted.
type rejection struct{ status string }

func (r rejection) Error() string { return "the webhook answered " + r.status }

// deliver delivers the documents of a hook in order, until the context ends. A webhook gets a document again until it
// accepts it, or has rejected it maxRejections times with the same settings. A program runs once for each,
// whatever its exit status: an old event must not run again after newer ones.
func (h *Hooks) deliver(ctx context.Context, x *one) {
	retry := h.retry
	rejections := 0     // of the oldest document
	var of *http.Client // of the rejections
	for {
		config, client, row, some := h.first(x)
		if row == nil {
			select {
			case <-ctx.Done():
				return
			case <-some:
			}
			continue
		}
		if client != of { // the hook has changed
			rejections, of = 0, client
		}
		output, err := send(ctx, &config, client, &row.Document)
		if ctx.Err() != nil {
			return // the next run of the agent delivers it
		}
		log := h.o.Log.With("hook", config.Name, "event", row.Kind, "object", row.Object)
		if output != "" {
			log = log.With("output", output)
		}
		if _, is := errors.AsType[rejection](err); is {
			rejections++
		}
		rejected := rejections == maxRejections
		if rejected {
			err = fmt.Errorf("%w, for the %dth time: the event is dropped", err, rejections)
		}
		done := err == nil || config.URL == "" || rejected
		switch before := h.tried(x, row, done, rejected, err); {
		case err != nil && (done || before == nil):
			log.Warn("hook failed", "err", err)
		case err == nil && before != nil:
			log.Info("hook works again")
		case output != "":
			log.Info("hook ran")
		}
		if rejected && row.Kind != eventRejected { // nor are there events about these events
			h.o.Events.Add(event.Event{Kind: eventRejected, Object: config.Name,
				Message: fmt.Sprintf("hook %s has lost the event %d, %s %s: %s", config.Name, row.ID, row.Kind, row.Object, err)})
		}
		if done {
			retry.Reset()
			rejections = 0
		} else {
			backoff.Nap(ctx, retry.Next(), x.changed)
		}
	}
}

// first returns the oldest document of a hook, which is in delivery from now on, and the settings for that. Without a
// document, some is closed when there is one.
func (h *Hooks) first(x *one) (config Config, client *http.Client, row *Row, some <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range x.queue.All() {
		x.sending = k
		return x.config, x.client, &h.rows.Row(k).Value, nil
	}
	return config, nil, nil, x.queue.Some()
}

// tried notes the result of an attempt, and returns that of the one before. A document that is done leaves the queue.
func (h *Hooks) tried(x *one, row *Row, done, rejected bool, err error) (before error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if done {
		h.remove(x, row.key())
	}
	if rejected {
		x.stats.rejected.add(time.Now())
	}
	return x.stats.tried(err, time.Now())
}

// send runs the program or sends the request once. The output is that of the program, or the beginning of an answer.
func send(ctx context.Context, c *Config, client *http.Client, d *Document) (output string, err error) {
	body, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.Timeout))
	defer cancel()
	if c.URL != "" {
		output, err = post(ctx, c, client, body)
	} else {
		output, err = command.Run(ctx, c.Command, d.environment(), append(body, '\n'))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not finished after %s", c.Timeout)
	}
	return text.Clip(strings.TrimSpace(output), command.MaxOutput), err
}

// environment returns the document as variables of a program.
func (d *Document) environment() []string {
	var out []string
	for _, v := range [...][2]string{
		{"HOOK", d.Hook}, {"NODE", d.Node}, {"ID", strconv.FormatUint(d.ID, 10)}, {"TIME", d.Time.UTC().Format(time.RFC3339Nano)},
		{"KIND", d.Kind}, {"SERVICE", d.Service}, {"OBJECT", d.Object}, {"MESSAGE", d.Message}, {"DROPPED", strconv.FormatUint(d.Dropped, 10)},
	} {
		out = append(out, "IRONVIP_"+v[0]+"="+strings.ReplaceAll(v[1], "\x00", ""))
	}
	return out
}

// newClient returns a client that takes a redirection for an answer: a signed document is for the configured URL only.
func newClient(c *Config) *http.Client {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if files := c.tls(); files != (tlsfile.Client{}) {
		client.Transport = transport{files}
	}
	return client
}

// transport makes a connection for each request, with or without a proxy, and reads the files for it.
type transport struct{ files tlsfile.Client }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	config, err := t.files.Config("") // the server, or a proxy with TLS before it
	if err != nil {
		return nil, err
	}
	once := http.DefaultTransport.(*http.Transport).Clone()
	once.TLSClientConfig, once.DisableKeepAlives = config, true
	return once.RoundTrip(r)
}

// post sends a request. Every status but 2xx is an error.
func post(ctx context.Context, c *Config, client *http.Client, body []byte) (output string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "ironvip")
	if c.SecretFile != "" {
		secret, err := readSecret(c.SecretFile) // each time: a new secret needs no reload
		if err != nil {
			return "", err
		}
		r.Header.Set(SignatureHeader, "sha256="+hex.EncodeToString(sign(secret, body)))
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	start, _ := io.ReadAll(io.LimitReader(answer.Body, command.MaxOutput)) // the status decides
	switch code := answer.StatusCode; {
	case code/100 == 2:
		return "", nil
	case code/100 == 4 && !slices.Contains(notOfTheDocument, code):
		return string(start), rejection{answer.Status}
	default:
		return string(start), fmt.Errorf("the webhook answered %s", answer.Status)
	}
}

func sign(secret, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return mac.Sum(nil)
}
