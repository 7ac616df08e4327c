module selvage.test/pion

go 1.21

require github.com/pion/webrtc/v2 v2.2.0

require (
	github.com/cheekybits/genny v1.0.0 // indirect
	github.com/lucas-clemente/quic-go v0.7.1-0.20190401152353-907071221cf9 // indirect
	github.com/marten-seemann/qtls v0.2.3 // indirect
	github.com/pion/datachannel v1.4.14 // indirect
	github.com/pion/dtls/v2 v2.0.0-rc.6 // indirect
	github.com/pion/ice v0.7.8 // indirect
	github.com/pion/logging v0.2.2 // indirect
	github.com/pion/mdns v0.0.4 // indirect
	github.com/pion/quic v0.1.1 // indirect
	github.com/pion/rtcp v1.2.1 // indirect
	github.com/pion/rtp v1.3.2 // indirect
	github.com/pion/sctp v1.7.4 // indirect
	github.com/pion/sdp/v2 v2.3.4 // indirect
	github.com/pion/srtp v1.2.7 // indirect
	github.com/pion/stun v0.3.3 // indirect
	github.com/pion/transport v0.8.10 // indirect
	github.com/pion/turn/v2 v2.0.2 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	golang.org/x/crypto v0.0.0-20200128174031-69ecbb4d6d5d // indirect
	golang.org/x/net v0.0.0-20191209160850-c0dbc17a3553 // indirect
	golang.org/x/sys v0.0.0-20190712062909-fae7ac547cb7 // indirect
	golang.org/x/xerrors v0.0.0-20191204190536-9bdfabe68543 // indirect
)
