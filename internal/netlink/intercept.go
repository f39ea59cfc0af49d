package netlink

import "context"

// Interceptor stands between the sockets and the kernel, for tests of faults. It gets the messages of one send, which is a
// write or a question. It returns what send returned for these or other messages, or an error in place of a send.
type Interceptor func(b []byte, write bool, send func(b []byte) error) error

type interceptorKey struct{}

// Intercept returns a context in whose calls every send passes an interceptor.
func Intercept(ctx context.Context, i Interceptor) context.Context {
	return context.WithValue(ctx, interceptorKey{}, i)
}

func interceptorOf(ctx context.Context) Interceptor {
	i, _ := ctx.Value(interceptorKey{}).(Interceptor)
	return i
}
