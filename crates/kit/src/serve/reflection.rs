//! gRPC reflection: the contracts told to clients that bring none.
//!
//! `v1alpha` has the messages of `v1` under another name, so one service
//! answers both. A question without an answer is told so in its turn and the
//! stream goes on, as the protocol wants it.

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::LazyLock,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{Request as HttpRequest, Response as HttpResponse, uri::PathAndQuery};
use prost_reflect::{DescriptorError, DescriptorPool, EnumDescriptor, MessageDescriptor};
use tonic::{Code, Request, Response, Status, Streaming, body::Body, server::NamedService};
use tonic_reflection::pb::{
    v1::{
        ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
        ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
        server_reflection_request::MessageRequest,
        server_reflection_response::MessageResponse,
        server_reflection_server::{ServerReflection, ServerReflectionServer},
    },
    {v1, v1alpha},
};
use tower::Service;

const METHOD: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Both versions of the service.
pub(super) fn services() -> (ServerReflectionServer<Reflection>, Alpha) {
    let server = ServerReflectionServer::new(Reflection);
    (server.clone(), Alpha(server))
}

pub(super) struct Reflection;

/// Index of all descriptors, made at the first question: most servers never get
/// one.
fn index() -> Result<&'static Index, Status> {
    static INDEX: LazyLock<Result<Index, DescriptorError>> = LazyLock::new(|| {
        let mut pool = selvage_api::pool_with_comments();
        for more in [
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            v1::FILE_DESCRIPTOR_SET,
            v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            pool.decode_file_descriptor_set(more)?;
        }
        Ok(Index::new(&pool))
    });
    INDEX.as_ref().map_err(|error| Status::internal(format!("reflection: {error}")))
}

struct Index {
    services: Vec<String>,
    /// Encoded files by their name.
    files: HashMap<String, Bytes>,
    /// Full name of everything that has one, and the name of its file.
    symbols: HashMap<String, String>,
    /// Full name of every message that is extended: by which numbers, and in
    /// which file.
    extensions: HashMap<String, HashMap<i32, String>>,
}

impl Index {
    fn new(pool: &DescriptorPool) -> Self {
        let mut index = Self {
            services: pool.services().map(|service| service.full_name().to_owned()).collect(),
            files: HashMap::new(),
            symbols: HashMap::new(),
            extensions: HashMap::new(),
        };
        for file in pool.files() {
            index.files.insert(file.name().to_owned(), file.encode_to_vec().into());
        }
        for service in pool.services() {
            let file = service.parent_file().name().to_owned();
            for method in service.methods() {
                index.symbols.insert(method.full_name().to_owned(), file.clone());
            }
            index.symbols.insert(service.full_name().to_owned(), file);
        }
        pool.all_messages().for_each(|message| index.add_message(&message));
        pool.all_enums().for_each(|kind| index.add_enum(&kind));
        for extension in pool.all_extensions() {
            let file = extension.parent_file().name().to_owned();
            let extended = extension.containing_message().full_name().to_owned();
            // Field numbers have 29 bits.
            let number = i32::try_from(extension.number()).unwrap_or_default();
            index.extensions.entry(extended).or_default().insert(number, file.clone());
            index.symbols.insert(extension.full_name().to_owned(), file);
        }
        index
    }

    fn add_message(&mut self, message: &MessageDescriptor) {
        let file = message.parent_file().name().to_owned();
        let fields = message.fields().map(|field| field.full_name().to_owned());
        let oneofs = message.oneofs().map(|oneof| oneof.full_name().to_owned());
        for name in fields.chain(oneofs).chain([message.full_name().to_owned()]) {
            self.symbols.insert(name, file.clone());
        }
    }

    fn add_enum(&mut self, kind: &EnumDescriptor) {
        let file = kind.parent_file().name().to_owned();
        for value in kind.values() {
            // Values are named beside their enum; many clients ask for them
            // below it.
            self.symbols.insert(value.full_name().to_owned(), file.clone());
            self.symbols.insert(format!("{}.{}", kind.full_name(), value.name()), file.clone());
        }
        self.symbols.insert(kind.full_name().to_owned(), file);
    }

    fn answer(&self, request: ServerReflectionRequest) -> ServerReflectionResponse {
        let found = match &request.message_request {
            Some(question) => self.find(question),
            None => Err(refused(Code::InvalidArgument, "the request asks nothing".to_owned())),
        };
        ServerReflectionResponse {
            valid_host: request.host.clone(),
            original_request: Some(request),
            message_response: Some(found.unwrap_or_else(MessageResponse::ErrorResponse)),
        }
    }

    fn find(&self, question: &MessageRequest) -> Result<MessageResponse, ErrorResponse> {
        match question {
            MessageRequest::ListServices(_) => {
                let service =
                    self.services.iter().map(|name| ServiceResponse { name: name.clone() });
                Ok(MessageResponse::ListServicesResponse(ListServiceResponse {
                    service: service.collect(),
                }))
            }
            MessageRequest::FileByFilename(name) => {
                self.file(Some(name), || format!("there is no file {name}"))
            }
            MessageRequest::FileContainingSymbol(name) => self
                .file(self.symbols.get(name.trim_start_matches('.')), || {
                    format!("there is no symbol {name}")
                }),
            MessageRequest::FileContainingExtension(wanted) => {
                let (message, number) = (&wanted.containing_type, wanted.extension_number);
                let known = self.extensions.get(message.trim_start_matches('.'));
                self.file(known.and_then(|numbers| numbers.get(&number)), || {
                    format!("{message} has no extension {number}")
                })
            }
            MessageRequest::AllExtensionNumbersOfType(name) => self.extension_numbers(name),
        }
    }

    fn file(
        &self,
        name: Option<&String>,
        missing: impl FnOnce() -> String,
    ) -> Result<MessageResponse, ErrorResponse> {
        let file = name.and_then(|name| self.files.get(name));
        let file = file.ok_or_else(|| refused(Code::NotFound, missing()))?;
        Ok(MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto: vec![file.to_vec()],
        }))
    }

    fn extension_numbers(&self, name: &str) -> Result<MessageResponse, ErrorResponse> {
        let full_name = name.trim_start_matches('.');
        if !self.symbols.contains_key(full_name) {
            return Err(refused(Code::NotFound, format!("there is no message {name}")));
        }
        let numbers: BTreeSet<i32> =
            self.extensions.get(full_name).into_iter().flat_map(HashMap::keys).copied().collect();
        Ok(MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
            base_type_name: full_name.to_owned(),
            extension_number: numbers.into_iter().collect(),
        }))
    }
}

fn refused(code: Code, error_message: String) -> ErrorResponse {
    ErrorResponse { error_code: code as i32, error_message }
}

#[tonic::async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream = BoxStream<'static, Result<ServerReflectionResponse, Status>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let index = index()?;
        let answers =
            request.into_inner().map(move |request| request.map(|request| index.answer(request)));
        Ok(Response::new(answers.boxed()))
    }
}

/// The service under the name it had before it was final.
#[derive(Clone)]
pub(super) struct Alpha(ServerReflectionServer<Reflection>);

impl NamedService for Alpha {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";
}

impl Service<HttpRequest<Body>> for Alpha {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = <ServerReflectionServer<Reflection> as Service<HttpRequest<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<HttpRequest<Body>>::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, mut request: HttpRequest<Body>) -> Self::Future {
        if request.uri().path().ends_with("/ServerReflectionInfo") {
            let mut parts = request.uri().clone().into_parts();
            parts.path_and_query = Some(PathAndQuery::from_static(METHOD));
            if let Ok(uri) = http::Uri::from_parts(parts) {
                *request.uri_mut() = uri;
            }
        }
        self.0.call(request)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn ask(question: MessageRequest) -> MessageResponse {
        let request =
            ServerReflectionRequest { host: "here".to_owned(), message_request: Some(question) };
        let answer = index().unwrap().answer(request.clone());
        assert_eq!(answer.original_request, Some(request));
        answer.message_response.unwrap()
    }

    fn symbol(name: &str) -> MessageResponse {
        ask(MessageRequest::FileContainingSymbol(name.to_owned()))
    }

    #[test]
    fn everything_that_has_a_name_is_found() {
        for name in [
            "edgeproto.AppApi",
            "edgeproto.AppApi.CreateApp",
            "edgeproto.App",
            ".edgeproto.App.key",
            "edgeproto.ImageType",
            "edgeproto.ImageType.IMAGE_TYPE_DOCKER",
            "google.api.http",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ] {
            let MessageResponse::FileDescriptorResponse(found) = symbol(name) else {
                panic!("{name} is not found")
            };
            assert_eq!(found.file_descriptor_proto.len(), 1, "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_answer_and_not_the_end() {
        for question in [
            MessageRequest::FileContainingSymbol("no.Such".to_owned()),
            MessageRequest::FileByFilename("no.proto".to_owned()),
            MessageRequest::AllExtensionNumbersOfType("no.Such".to_owned()),
        ] {
            let MessageResponse::ErrorResponse(error) = ask(question) else {
                panic!("something is found")
            };
            assert_eq!(error.error_code, Code::NotFound as i32);
            assert!(error.error_message.contains("no."), "{}", error.error_message);
        }
    }

    #[test]
    fn files_keep_their_routes() {
        let options = "google.protobuf.MethodOptions";
        let MessageResponse::AllExtensionNumbersResponse(numbers) =
            ask(MessageRequest::AllExtensionNumbersOfType(options.to_owned()))
        else {
            panic!("no numbers")
        };
        assert_eq!(numbers.extension_number, [72_295_728]);
        let MessageResponse::FileDescriptorResponse(file) = symbol("edgeproto.AppApi") else {
            panic!("no file")
        };
        let file = &file.file_descriptor_proto[0];
        let route = b"/create/app";
        assert!(file.windows(route.len()).any(|bytes| bytes == route));
    }
}
