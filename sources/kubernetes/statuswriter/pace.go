package statuswriter

import (
	"math/rand/v2"
	"time"
)

const (
	writeRate  = 10 // requests a second, of the whole Writer
	writeBurst = 20
)

// delay returns how long not to send a request. If that is 0, it takes a token of the pace.
func (w *Writer) delay() (wait time.Duration) {
	if wait = time.Until(w.pause.until); wait > 0 {
		return wait
	}
	token := w.pace.Reserve()
	if wait = token.Delay(); wait > 0 {
		token.Cancel()
	}
	return wait
}

// grown returns the backoff after a number of failures. It doubles each time, with a jitter of up
// to half.
func grown(first, most time.Duration, failures int) time.Duration {
	d := most
	if failures < 16 { // more would overflow
		d = min(first<<max(0, failures-1), most)
	}
	return d/2 + rand.N(d/2+1)
}

// pause is the wait after an answer that the server is unavailable for all requests.
type pause struct {
	failures int
	until    time.Time
}

func (p *pause) fail(asked time.Duration) {
	p.failures++
	p.until = time.Now().Add(max(asked, grown(time.Second, 30*time.Second, p.failures)))
}
