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
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/command"
	"github.com/ironvip/ironvip/internal/text"
)

// SignatureHeader has "sha256=" and the HMAC-SHA256 of the body of a request, in hexadecimal digits.
const SignatureHeader = "X-Ironvip-Signature"

// deliver delivers the documents of a hook in order, until the context ends. A webhook gets a document again until it
// accepts it. A program runs once for each, whatever its exit status: an old event must not run again after newer ones.
func (h *Hooks) deliver(ctx context.Context, x *one) {
	retry := h.retry
	for {
		config, row, some := h.first(x)
		if row == nil {
			select {
			case <-ctx.Done():
				return
			case <-some:
			}
			continue
		}
		output, err := h.send(ctx, &config, &row.Document)
		if ctx.Err() != nil {
			return // the next run of the agent delivers it
		}
		log := h.o.Log.With("hook", config.Name, "event", row.Kind, "object", row.Object)
		if output != "" {
			log = log.With("output", output)
		}
		done := err == nil || config.URL == ""
		switch before := h.tried(x, row, done, err); {
		case err != nil && (done || before == nil):
			log.Warn("hook failed", "err", err)
		case err == nil && before != nil:
			log.Info("hook works again")
		case output != "":
			log.Info("hook ran")
		}
		if done {
			retry.Reset()
		} else {
			backoff.Nap(ctx, retry.Next(), x.changed)
		}
	}
}

// first returns the oldest document of a hook, which is in delivery from now on, and the settings for that. Without a
// document, some is closed when there is one.
func (h *Hooks) first(x *one) (config Config, row *Row, some <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range x.queue.All() {
		x.sending = k
		return x.config, &h.rows.Row(k).Value, nil
	}
	return config, nil, x.queue.Some()
}

// tried notes the result of an attempt, and returns that of the one before. A document that is done leaves the queue.
func (h *Hooks) tried(x *one, row *Row, done bool, err error) (before error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if done {
		h.remove(x, row.key())
	}
	return x.stats.tried(err, time.Now())
}

// send runs the program or sends the request once. The output is that of the program, or the beginning of an answer.
func (h *Hooks) send(ctx context.Context, c *Config, d *Document) (output string, err error) {
	body, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.Timeout))
	defer cancel()
	if c.URL != "" {
		output, err = h.post(ctx, c, body)
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
func newClient() *http.Client {
	return &http.Client{
		Transport:     http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post sends a request. Every status but 2xx is an error.
func (h *Hooks) post(ctx context.Context, c *Config, body []byte) (output string, err error) {
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
	answer, err := h.client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	start, _ := io.ReadAll(io.LimitReader(answer.Body, command.MaxOutput)) // the status decides
	if answer.StatusCode/100 != 2 {
		return string(start), fmt.Errorf("the webhook answered %s", answer.Status)
	}
	return "", nil
}

func sign(secret, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return mac.Sum(nil)
}
