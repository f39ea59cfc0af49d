package message_test

import (
	"bufio"
	"bytes"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

func FuzzReadMessage(f *testing.F) {
	f.Add(sampleOpen.Append(nil))
	f.Add(message.AppendKeepalive(message.AppendEndOfRIB(nil, message.IPv6)))
	f.Add((&message.Notification{Code: 6, Subcode: 2, Data: []byte("\x05hello")}).Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, buf := bufio.NewReader(bytes.NewReader(in)), make([]byte, message.MaxSize)
		for {
			typ, body, err := message.Read(r, buf)
			if err != nil {
				return
			}
			switch typ {
			case message.TypeOpen:
				message.ParseOpen(body)
			case message.TypeNotification:
				if s := message.ParseNotification(body).Explain(1, netip.Addr{}); s == "" {
					t.Error("no reason")
				}
			}
		}
	})
}

func FuzzParseOpen(f *testing.F) {
	f.Add(sampleOpen.Append(nil)[message.HeaderSize:])
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := message.ParseOpen(in)
		if err != nil {
			return
		}
		again, err := message.ParseOpen(o.Append(nil)[message.HeaderSize:])
		if err != nil || again.ASN != o.ASN || again.GracefulRestart != o.GracefulRestart || again.RouteRefresh != o.RouteRefresh || again.ExtendedNextHop != o.ExtendedNextHop {
			t.Errorf("%+v becomes %+v, %v", o, again, err)
		}
	})
}
