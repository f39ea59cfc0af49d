package proxy

import (
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/vip"
)

// listener accepts the clients of a frontend.
type listener interface {
	// usable reports to the listener whether a backend accepts new connections. A UDP listener
	// opens or closes its socket accordingly.
	usable(bool) error
	// died returns the error that ended the listener, or nil.
	died() error
	// stop leaves new clients to other processes that have the listener's socket.
	stop()
	// close ends the listener, in all processes unless it was stopped. No client is accepted
	// afterwards.
	close()
}

// frontend has the listener of one key, and the backends of its clients. One goroutine at a time may call its methods.
type frontend struct {
	*balance.Frontend
	target   *Target
	spec     *vip.Frontend // as applied
	listener listener
}

// choose sets spec's backends.
func (f *frontend) choose(spec *vip.Frontend) {
	f.spec = spec
	f.Choose(spec)
}

// close ends the listener and every connection, and waits for all tasks.
func (f *frontend) close() {
	if f.listener != nil {
		f.listener.close()
	}
	f.Close()
}

// complain logs an error of this host about the frontend, at most once a second for all frontends.
func (f *frontend) complain(doing string, err error) { f.target.balance.Complain(f.Key, doing, err) }
