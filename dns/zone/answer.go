package zone

import "github.com/ironvip/ironvip/dns/message"

// Outcome is what a query asked and how it was answered, for counters.
type Outcome struct {
	Type message.Type // 0 if the question was not read
	Code message.Code
}

// Answer appends the reply to a query to out, and returns the extended slice. It appends nothing if
// no reply must be sent. It allocates nothing if out has room for the reply: message.MaxUDP bytes, or
// message.MaxTCP with tcp.
func (z *Zone) Answer(out, query []byte, tcp bool) ([]byte, Outcome) {
	var q message.Query
	code, ok := q.Parse(query)
	if !ok {
		return out, Outcome{}
	}
	r := message.Reply{Code: code}
	if code == message.NoError {
		if q.Internet() {
			z.lookup(q.Name(), q.Type, &r)
		} else {
			r.Code = message.Refused
		}
	}
	return q.Append(out, &r, q.Limit(tcp)), Outcome{q.Type, r.Code}
}
